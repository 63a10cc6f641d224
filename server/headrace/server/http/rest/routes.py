"""The table of REST's paths. The routes and the files of the OpenAPI document are made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace.server.access.identity import Role
from headrace.server.http.guard import Check, GuardedRoute
from headrace.server.http.rest.render import rendered
from headrace.server.services.open_inference.models import Models
from headrace.server.serving.presence import called_when_loaded

Handler = Callable[[Request], Awaitable[Response]]

VERSIONS: Final = "/versions/{version}"


class RouteRow(NamedTuple):
    """One method of one path.

    Attributes:
        method: GET or POST.
        path: the path, with placeholders.
        role: the role that callers need.
        handler: a handler for Starlette.
        summary: what the method does, for the document.
        request: the schema of the body in the document. "" if the method takes no body.
        reply: the schema of the reply.
        probe: whether the server answers the method even while it stops.
    """

    method: str
    path: str
    role: Role
    handler: Handler | ASGIApp
    summary: str
    request: str = ""
    reply: str = "Done"
    probe: bool = False


def made(rows: Iterable[RouteRow], check: Check | None = None) -> list[GuardedRoute]:
    """The routes of the rows, one for each path, in their order. `check` as in `GuardedRoute`."""
    by_path: dict[str, dict[str, RouteRow]] = {}
    for row in rows:
        by_path.setdefault(row.path, {})[row.method] = row
    return [_route(path, methods, check) for path, methods in by_path.items()]


def _route(path: str, methods: dict[str, RouteRow], check: Check | None) -> GuardedRoute:
    roles = {method: row.role for method, row in methods.items()}
    if len(methods) == 1:
        (row,) = methods.values()
        return GuardedRoute(path, row.handler, roles, check)

    async def by_method(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        handler: Any = methods[method].handler
        reply: Response = await handler(request)
        return reply

    return GuardedRoute(path, by_method, roles, check)


def said(message: Any, status: int = HTTPStatus.OK) -> Response:
    """A message of the protocol, or any other value, as JSON."""
    value = rendered(message) if hasattr(message, "DESCRIPTOR") else message
    return Response(orjson.dumps(value), status, media_type="application/json")


class ModelRoutes:
    """The routes that describe the server and its models.

    If the server or model is not ready, the status is 503. Many clients look only at the status.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    def rows(self) -> list[RouteRow]:
        of_model = [
            ("", self._metadata, "A model's inputs and outputs.", "ModelMetadataResponse"),
            ("/ready", self._ready, "Whether a model takes requests.", "Ready"),
            ("/config", self._config, "A model's configuration.", "ModelConfig"),
            ("/stats", self._statistics, "Counts and times of a model.", "ModelStatisticsResponse"),
        ]
        anybody, read, model = Role.OPEN, Role.READ, "/v2/models/{model}"
        return [
            RouteRow(
                "GET",
                "/v2",
                read,
                self._server,
                "What the server is.",
                reply="ServerMetadataResponse",
            ),
            RouteRow(
                "GET",
                "/v2/health/live",
                anybody,
                self._live,
                "Whether the server answers.",
                "",
                "Live",
                probe=True,
            ),
            RouteRow(
                "GET",
                "/v2/health/ready",
                anybody,
                self._server_ready,
                "Whether the server takes requests.",
                reply="Ready",
                probe=True,
            ),
            RouteRow(
                "GET",
                "/v2/models/stats",
                read,
                self._statistics,
                "Counts and times of all models.",
                "",
                "ModelStatisticsResponse",
            ),
            *(
                RouteRow("GET", f"{model}{version}{path}", read, handler, summary, "", reply)
                for path, handler, summary, reply in of_model
                for version in ("", VERSIONS)
            ),
        ]

    async def _server(self, _: Request) -> Response:
        return said(self._models.server_metadata())

    async def _live(self, _: Request) -> Response:
        return said(self._models.live())

    async def _server_ready(self, _: Request) -> Response:
        return _readiness(self._models.ready().ready)

    async def _metadata(self, request: Request) -> Response:
        described = partial(self._models.model_metadata, *named(request))
        return said(await called_when_loaded(described))

    async def _config(self, request: Request) -> Response:
        described = partial(self._models.model_config, *named(request))
        return said((await called_when_loaded(described)).config)

    async def _statistics(self, request: Request) -> Response:
        return said(self._models.statistics(*named(request)))

    async def _ready(self, request: Request) -> Response:
        name, version = named(request)
        return _readiness(self._models.model_ready(name, version).ready, name=name)


def named(request: Request) -> tuple[str, str]:
    """The model and the version that the path names. "" means no version."""
    return request.path_params.get("model", ""), request.path_params.get("version", "")


def _readiness(ready: bool, **said_too: str) -> Response:
    status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    return said({**said_too, "ready": ready}, status)
