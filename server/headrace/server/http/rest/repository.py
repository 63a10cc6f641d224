"""The model repository over REST: the index, loads with a configuration and files, and unloads."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.access.identity import Role
from headrace.server.http.rest.bodies import Bodies, read_object
from headrace.server.http.rest.documents import leave_out_null
from headrace.server.http.rest.render import rendered
from headrace.server.http.rest.routes import RouteRow, said
from headrace.server.services.open_inference.loading import ModelRepository, Parameter
from headrace.wire.codec import CodecError

_ROOT: Final = "/v2/repository"
_FILE: Final = "file:"


class RepositoryRoutes:
    """Belongs to the thread of the HTTP server's loop."""

    def __init__(self, repository: ModelRepository, bodies: Bodies) -> None:
        self._repository = repository
        self._bodies = bodies

    def rows(self) -> list[RouteRow]:
        return [
            RouteRow(
                "POST",
                f"{_ROOT}/index",
                Role.READ,
                self._index,
                "What is loaded, and what the model repository holds.",
                "Index",
                "Models",
            ),
            RouteRow(
                "POST",
                f"{_ROOT}/models/{{model}}/load",
                Role.MANAGE,
                self._load,
                "Loads a model, or loads it again.",
                "LoadParameters",
            ),
            RouteRow(
                "POST",
                f"{_ROOT}/models/{{model}}/unload",
                Role.MANAGE,
                self._unload,
                "Unloads a model.",
                "UnloadParameters",
            ),
        ]

    async def _index(self, request: Request) -> Response:
        given = await read_object(self._bodies, request, ("ready", "repository_name"))
        ready, name = given.get("ready", False), given.get("repository_name", "")
        if not isinstance(ready, bool):
            raise CodecError("ready", "takes true or false")
        if not isinstance(name, str):
            raise CodecError("repository_name", "takes text")
        return said(rendered(await self._repository.index(name, ready=ready))["models"])

    async def _load(self, request: Request) -> Response:
        parameters = await self._parameters(request)
        return said(await self._repository.load(request.path_params["model"], parameters))

    async def _unload(self, request: Request) -> Response:
        parameters = await self._parameters(request)
        return said(await self._repository.unload(request.path_params["model"], parameters))

    async def _parameters(self, request: Request) -> Mapping[str, Parameter]:
        given = (await read_object(self._bodies, request, ("parameters",))).get("parameters", {})
        if not isinstance(given, dict):
            raise CodecError("parameters", "must be an object")
        leave_out_null(given)
        read: dict[str, Parameter] = {}
        for name, value in given.items():
            if not isinstance(value, bool | int | str):
                raise CodecError(_field(name), "must be text, a whole number or a boolean")
            read[name] = _file(name, value) if name.startswith(_FILE) else value
        return read


def _file(name: str, value: bool | int | str) -> bytes:
    if not isinstance(value, str):
        raise CodecError(_field(name), "must be the file's bytes in base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise CodecError(_field(name), "is not base64") from None


def _field(name: str) -> str:
    return f"parameters[{name[:100]!r}]"
