"""All of REST: the routes, and the objects that they share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from headrace.runtime.errors import NotFound
from headrace.server.access.identity import Role
from headrace.server.access.networks import Networks
from headrace.server.elsewhere import Elsewhere
from headrace.server.http.guard import GuardedRoute
from headrace.server.http.rest.bodies import Bodies
from headrace.server.http.rest.control import ControlRoutes
from headrace.server.http.rest.infer import HttpCall, Infer
from headrace.server.http.rest.repository import RepositoryRoutes
from headrace.server.http.rest.routes import VERSIONS, ModelRoutes, RouteRow, made
from headrace.server.services.open_inference.loading import ModelRepository
from headrace.server.services.open_inference.models import Models
from headrace.server.services.open_inference.regions import RegionMethods
from headrace.server.serving.completion_sink import CompletionSink
from headrace.server.serving.serving import Serving, caller_of
from headrace.server.shared_memory.regions import Regions
from headrace.server.shared_memory.users import Caller

_BODIES = 8


class Rest:
    """The routes of REST.

    Args:
        networks: the networks that compute requests.
        models: describes the networks.
        repository: loads and unloads the networks.
        regions: the regions that clients have registered.
        message_bytes: the largest body. The bodies of all connections together may take eight times
            as much.
        registration: the role that the registration of shared memory needs.
        elsewhere: the networks that other servers have. Of REST, only inference is passed on.

    Attributes:
        rows: the table of paths, of which `openapi.json` and `docs.html` are made.
        probes, routes: the arguments for `Application`.
    """

    def __init__(
        self,
        networks: Networks,
        models: Models,
        repository: ModelRepository,
        regions: Regions,
        message_bytes: int,
        registration: Role = Role.MANAGE,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._networks = networks
        self._elsewhere = elsewhere
        self._regions = regions
        self._bodies = Bodies(message_bytes, _BODIES * message_bytes)
        control = ControlRoutes(
            models, RegionMethods(regions), self._bodies, self._caller, registration
        )
        about_models = [
            *ModelRoutes(models).rows(),
            *RepositoryRoutes(repository, self._bodies).rows(),
            *control.rows(),
        ]
        inference = [
            RouteRow(
                "POST",
                f"/v2/models/{{model}}{version}/infer",
                Role.INFER,
                _infer,
                "Computes one request.",
                "InferRequest",
                "InferResponse",
            )
            for version in ("", VERSIONS)
        ]
        self.rows = [*about_models, *inference]
        openapi, docs = (
            files(__package__).joinpath(name).read_bytes() for name in ("openapi.json", "docs.html")
        )

        async def give_openapi(_: Request) -> Response:
            return Response(openapi, media_type="application/json")

        async def give_docs(_: Request) -> Response:
            return HTMLResponse(docs, headers={"content-security-policy": _NOTHING_ELSE})

        self.probes = made(row for row in self.rows if row.probe)
        self.routes = [
            GuardedRoute("/v2/openapi.json", give_openapi, {"GET": Role.READ}),
            GuardedRoute("/v2/docs", give_docs, {"GET": Role.READ}),
            *made((row for row in about_models if not row.probe), self._check_here),
            *made(inference),
        ]

    @asynccontextmanager
    async def lifespan(self, _: Router) -> AsyncIterator[dict[str, object]]:
        """Makes the objects that belong to the loop of the HTTP server."""
        sink = CompletionSink(asyncio.get_running_loop())
        serving = Serving(self._networks, sink, self._regions, self._elsewhere)
        yield {"infer": Infer(serving, self._bodies)}

    def _check_here(self, placeholders: Mapping[str, str]) -> None:
        """
        Raises:
            NotFound: only other servers have the model.
        """
        name = placeholders.get("model")
        if name is None or not self._elsewhere:
            return
        if servers := self._elsewhere.servers(self._networks.names(name)):
            raise NotFound(
                f"network {name!r} is not on this replica, but on {', '.join(servers)}: use gRPC, "
                "which every replica passes on, or REST of a replica that has it",
                field="model",
            )

    async def _caller(self, request: Request) -> Caller:
        return await caller_of(HttpCall(request), self._networks)


_NOTHING_ELSE = "default-src 'none'; style-src 'unsafe-inline'"


class _FromState:
    """Forwards to the application that the lifespan has stored under this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope["state"][self._name](scope, receive, send)


_infer = _FromState("infer")
