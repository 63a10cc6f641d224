"""Every document that deploy/kubernetes renders to fits the schema that its project publishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.rendering import KUBERNETES, SERVERS, rendered, run

SCHEMAS = Path(__file__).parent / "schemas"
# The oldest has what the manifests use (preStop.sleep); the newest is the one of our kubectl.
VERSIONS = ("1.30", "1.37")
FOLDERS = [*SERVERS.values(), KUBERNETES / "kserve"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_validate_accepts_every_document(version: str, tmp_path: Path) -> None:
    core = [each for folder in FOLDERS for each in rendered(folder).documents if not custom(each)]
    assert len(core) > 4 * len(SERVERS)
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(core), "utf-8")
    told = run("venv/bin/kubernetes-validate", "--kubernetes-version", version, "--strict", file)
    assert told.count("INFO") == len(core), told


def custom(document: Any) -> bool:
    """Whether a document's kind is none of Kubernetes' own."""
    group = document["apiVersion"].rpartition("/")[0]
    return "." in group and not group.endswith("k8s.io")


def closed(schema: Any) -> Any:
    """A custom resource's schema as JSON Schema, in which no other properties may be."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if schema.get("nullable") and isinstance(schema.get("type"), str):
        made["type"] = [schema["type"], "null"]
    if (
        isinstance(schema.get("properties"), dict)
        and schema.get("type") == "object"
        and "additionalProperties" not in schema
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        made["additionalProperties"] = False
    return made


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda each: each.name)
def test_every_custom_resource_fits_its_published_schema(folder: Path) -> None:
    for document in filter(custom, rendered(folder).documents):
        name = f"{document['apiVersion'].replace('/', '_')}_{document['kind']}.json"
        schema = closed(json.loads((SCHEMAS / name).read_text("utf-8")))
        jsonschema.Draft202012Validator(schema).validate(document)


def test_a_property_that_no_schema_has_is_refused() -> None:
    (monitor,) = rendered(SERVERS["shared"]).all("PodMonitor")
    schema = closed(
        json.loads((SCHEMAS / "monitoring.coreos.com_v1_PodMonitor.json").read_text("utf-8"))
    )
    wrong = json.loads(json.dumps(monitor))
    wrong["spec"]["podMetricsEndpoints"][0]["tlsconfig"] = {}
    with pytest.raises(jsonschema.ValidationError, match="tlsconfig"):
        jsonschema.Draft202012Validator(schema).validate(wrong)
