"""The OpenAPI document of REST, made from the table of paths, and the page that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from http import HTTPStatus
from typing import Any, Final

from headrace.server.http.rest.routes import Row

_PLACEHOLDER = re.compile(r"\{(\w+)\}")

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "format": "int64"}
_FLAG: Final = {"type": "boolean"}
_TENSOR: Final = {
    "name": _TEXT,
    "datatype": {
        "enum": [
            *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
            *("FP16", "BF16", "FP32", "FP64", "BYTES"),
        ]
    },
    "shape": {"type": "array", "items": _NUMBER},
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


def _list(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


_SCHEMAS: Final[dict[str, Any]] = {
    "Error": _of({"error": {**_TEXT, "description": "what is wrong, and the remedy"}}, "error"),
    "Live": _of({"live": _FLAG}, "live"),
    "Ready": _of({"name": _TEXT, "ready": _FLAG}, "ready"),
    "ServerMetadata": _of(
        {"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}, "name", "version"
    ),
    "ModelMetadata": _of(
        {
            "name": _TEXT,
            "versions": _list(_TEXT),
            "platform": _TEXT,
            "inputs": _list(_of(_TENSOR, *_TENSOR)),
            "outputs": _list(_of(_TENSOR, *_TENSOR)),
        },
        *("name", "platform", "inputs", "outputs"),
    ),
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
            "parameters": _reference("Parameters"),
            "inputs": _list(
                _of(
                    {**_TENSOR, "parameters": _reference("Parameters"), "data": _reference("Data")},
                    *_TENSOR,
                )
            ),
            "outputs": _list(_of({"name": _TEXT, "parameters": _reference("Parameters")}, "name")),
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
            "parameters": _reference("Parameters"),
            "outputs": _list(
                _of(
                    {**_TENSOR, "parameters": _reference("Parameters"), "data": _reference("Data")},
                    *_TENSOR,
                )
            ),
        },
        *("model_name", "outputs"),
    ),
}


def document(rows: Iterable[Row], version: str) -> dict[str, Any]:
    """The document.

    Args:
        version: the server's.
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
        "components": {"schemas": _SCHEMAS},
    }


def _operation(row: Row) -> dict[str, Any]:
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
                "content": _json(_reference(row.reply) if row.reply else {}),
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


def page(rows: Iterable[Row]) -> str:
    """A page that lists the paths; it loads nothing else."""
    lines = "\n".join(
        f"<tr><td><code>{row.method}</code></td><td><code>{escape(row.path)}</code></td>"
        f"<td>{escape(row.summary)}</td></tr>"
        for row in rows
    )
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>headrace: REST</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; }}
td {{ padding: .2rem 1rem .2rem 0; vertical-align: top; }}
</style></head>
<body>
<h1>headrace: the Open Inference Protocol over REST</h1>
<p>The <a href="/v2/openapi.json">OpenAPI document</a> has the schemas of requests and replies.</p>
<table>
{lines}
</table>
</body></html>
"""
