"""Makes a small schema from a published CustomResourceDefinition, for test_kubernetes.py.

    python -m tests.deploy.shrink CRD.yaml VERSION [PROPERTY...]

It leaves out descriptions, the status, and the named properties: those that our manifests do not
use, and that would take most of the space. A manifest that uses one of them is refused.
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


def main(file: str, version: str, *unused: str) -> None:
    definition = yaml.safe_load(Path(file).read_text("utf-8"))["spec"]
    (found,) = (each for each in definition["versions"] if each["name"] == version)
    schema = without_descriptions(found["schema"]["openAPIV3Schema"])
    del schema["properties"]["status"]
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
