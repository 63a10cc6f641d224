"""Makes a small schema from a published CustomResourceDefinition, for test_schemas.py.

    python -m tests.deploy.shrink CRD.yaml VERSION [PROPERTY...]
    python -m tests.deploy.shrink CRD.yaml VERSION MANIFEST.yaml

It leaves out descriptions, the status, and the named properties: those that our manifests do not
use, and that would take most of the space. With a manifest, it leaves out every property that the
manifest does not use. A manifest that uses one of them is refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = Path(__file__).parent / "schemas"


def without_descriptions(schema: Any) -> Any:
    """A copy of a schema without its texts, which are most of it."""
    if isinstance(schema, dict):
        return {
            key: without_descriptions(value)
            for key, value in schema.items()
            if not (key == "description" and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [without_descriptions(each) for each in schema]
    return schema


def used(schema: Any, value: Any) -> Any:
    """A copy of a schema without the optional properties that a value does not use."""
    if not isinstance(schema, dict):
        return schema
    kept = dict(schema)
    if isinstance(value, list) and "items" in schema:
        merged = {
            key: each for item in value if isinstance(item, dict) for key, each in item.items()
        }
        kept["items"] = used(schema["items"], merged or None)
    properties = schema.get("properties")
    if isinstance(properties, dict):
        given = value if isinstance(value, dict) else {}
        needed = given.keys() | set(schema.get("required", ()))
        kept["properties"] = {
            name: used(each, given.get(name)) for name, each in properties.items() if name in needed
        }
    return kept


def main(file: str, version: str, *unused: str) -> None:
    definition = yaml.safe_load(Path(file).read_text("utf-8"))["spec"]
    (found,) = (each for each in definition["versions"] if each["name"] == version)
    schema = without_descriptions(found["schema"]["openAPIV3Schema"])
    del schema["properties"]["status"]
    if len(unused) == 1 and unused[0].endswith(".yaml"):
        schema, unused = used(schema, yaml.safe_load(Path(unused[0]).read_text("utf-8"))), ()
    for path in unused:
        *parents, last = path.split(".")
        place = schema["properties"]["spec"]
        for name in parents:
            place = place["properties"][name]
        del place["properties"][last]
    names = definition["group"], version, definition["names"]["kind"]
    text = json.dumps(schema, separators=(",", ":"), sort_keys=True)
    (SCHEMAS / f"{'_'.join(names)}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
