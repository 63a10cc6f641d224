"""Writes the OpenAPI document of REST, and the page that shows it, from the table of paths.

``.venv/bin/python -m tests.support.manual`` writes both anew where the server reads them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.core import Core
from headrace.runtime.intake.limits import Limits
from headrace.server.access.networks import Networks
from headrace.server.http.rest import rest as rest_module
from headrace.server.http.rest.render import is_parameter
from headrace.server.http.rest.rest import Rest
from headrace.server.http.rest.routes import RouteRow
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.repository import Repository
from headrace.server.services.open_inference.datatypes import NUMPY_TYPES
from headrace.server.services.open_inference.loading import ModelRepository
from headrace.server.services.open_inference.models import Models
from headrace.server.serving.catalogue import Catalogue
from headrace.server.shared_memory.regions import Regions
from tests.support.openapi_page import page

_PLACEHOLDER = re.compile(r"\{(\w+)\}")

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "format": "int64"}
_FLAG: Final = {"type": "boolean"}
_TYPES: Final[Mapping[int, Mapping[str, str]]] = {
    FieldDescriptor.CPPTYPE_BOOL: _FLAG,
    FieldDescriptor.CPPTYPE_STRING: _TEXT,
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number"},
}


def _of(properties: dict[str, Any], *required: str, described: str = "") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    if described:
        schema["description"] = described
    return schema


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item}


_TENSOR: Final = {
    "name": _TEXT,
    "datatype": {"enum": list(NUMPY_TYPES)},
    "shape": _list(_NUMBER),
}
_PARAMETERS: Final = _reference("Parameters")
_DATA: Final = {**_TENSOR, "parameters": _PARAMETERS, "data": _reference("Data")}

_SCHEMAS: Final[dict[str, Any]] = {
    "Error": _of({"error": {**_TEXT, "description": "what is wrong, and the remedy"}}, "error"),
    "Done": _of({}, described="empty"),
    "Live": _of({"live": _FLAG}, "live"),
    "Ready": _of({"name": _TEXT, "ready": _FLAG}, "ready"),
    "Parameters": {
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    },
    "Data": {
        "type": "array",
        "description": "the elements in row-major order, flat or nested as the shape",
    },
    "InferRequest": _of(
        {
            "id": _TEXT,
            "model_name": _TEXT,
            "model_version": _TEXT,
            "parameters": _PARAMETERS,
            "inputs": _list(_of(_DATA, *_TENSOR)),
            "outputs": _list(_of({"name": _TEXT, "parameters": _PARAMETERS}, "name")),
        },
        "inputs",
        described="With the header Inference-Header-Content-Length, which has the length of this "
        "JSON, the bytes of inputs with the parameter binary_data_size follow it.",
    ),
    "InferResponse": _of(
        {
            "model_name": _TEXT,
            "model_version": _TEXT,
            "id": _TEXT,
            "parameters": _PARAMETERS,
            "outputs": _list(_of(_DATA, *_TENSOR)),
        },
        "model_name",
        "outputs",
    ),
    "Index": _of({"ready": {**_FLAG, "description": "only models that are ready"}}),
    "Models": _list(_reference("RepositoryIndexResponse.ModelIndex")),
    "LoadParameters": _of(
        {"parameters": _PARAMETERS},
        described="config is a model's configuration as JSON text. file:1/model.onnx is a model in "
        "base64, file:1/NAME its external data, and file:NAME a file of labels.",
    ),
    "UnloadParameters": _of({"parameters": _of({"unload_dependents": _FLAG})}),
    "SystemRegion": _of(
        {"key": _TEXT, "offset": _NUMBER, "byte_size": _NUMBER},
        "key",
        "byte_size",
    ),
    "SystemRegions": _list(_reference("SystemSharedMemoryStatusResponse.RegionStatus")),
    "CudaRegions": _list(_reference("CudaSharedMemoryStatusResponse.RegionStatus")),
    "Settings": {"type": "object"},
}

_MESSAGES: Final = (
    oip.ServerMetadataResponse,
    oip.ModelMetadataResponse,
    oip.ModelConfig,
    oip.ModelStatisticsResponse,
    oip.RepositoryIndexResponse.ModelIndex,
    oip.SystemSharedMemoryStatusResponse.RegionStatus,
    oip.CudaSharedMemoryStatusResponse.RegionStatus,
)
"""The messages in replies. Each has a schema under its name."""


def _schemas() -> dict[str, Any]:
    schemas = dict(_SCHEMAS)
    for message in _MESSAGES:
        _add(schemas, message.DESCRIPTOR)
    return dict(sorted(schemas.items()))


def _add(schemas: dict[str, Any], message: Any) -> str:
    """Adds the schemas of the message and its parts, and returns the message's name."""
    name: str = message.full_name.partition(".")[2]
    if name not in schemas:
        schemas[name] = schema = _of({})
        for field in message.fields:
            schema["properties"][field.name] = _field(schemas, field)
    return name


def _field(schemas: dict[str, Any], field: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        if is_parameter(inner):
            return _PARAMETERS
        values = _field(schemas, inner)
        return {"type": "object", "additionalProperties": values}
    if kind is not None:
        schema: Any = _reference(_add(schemas, kind))
    elif field.enum_type is not None:
        schema = {"enum": [value.name for value in field.enum_type.values]}
    else:
        schema = _TYPES.get(field.cpp_type, _NUMBER)
    return _list(schema) if field.is_repeated else schema


def document(rows: Iterable[RouteRow], version: str) -> dict[str, Any]:
    """The OpenAPI document.

    Args:
        version: the server's version.
    """
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headrace: the Open Inference Protocol over REST",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": _schemas()},
    }


def _operation(row: RouteRow) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": row.summary,
        "operationId": re.sub(r"\W+", "_", f"{row.method.lower()}{row.path}").strip("_"),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _TEXT}
            for name in _PLACEHOLDER.findall(row.path)
        ],
        "responses": {
            str(HTTPStatus.OK.value): {
                "description": "done",
                "content": _json(_reference(row.reply)),
            },
            "default": {
                "description": "an error",
                "content": _json(_reference("Error")),
            },
        },
    }
    if row.request:
        operation["requestBody"] = {"content": _json(_reference(row.request))}
    return operation


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


@contextmanager
def unused_rest() -> Iterator[Rest]:
    """REST of a server without devices and networks."""
    core, regions = Core([], blob_key=bytes(32)), Regions(allowed=False, max_bytes=1 << 20)
    try:
        files = RepositoryFiles(None, Limits())
        networks = Networks(core.networks)
        repository = ModelRepository(
            core,
            networks,
            Repository(core, files, lambda _: None),
            Catalogue(core, lambda _: None),
        )
        models = Models(core, networks, lambda: None)
        yield Rest(networks, models, repository, regions, 1 << 20)
    finally:
        regions.close()
        core.stop()


def files() -> dict[Path, str]:
    """The text of each file that the server gives out."""
    folder = Path(rest_module.__file__).parent
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))
    with unused_rest() as rest:
        made = document(rest.rows, project["project"]["version"])
    text = json.dumps(made, ensure_ascii=False, indent=1)
    return {folder / "openapi.json": text + "\n", folder / "docs.html": page(made)}
