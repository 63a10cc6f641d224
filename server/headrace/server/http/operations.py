"""Metrics and probes, for the operators of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus

import anyio.to_thread
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headrace.server.access.identity import CALLER, Role
from headrace.server.http.guard import GuardedRoute

# Returns a text that says why the server is not ready, or None if it is.
Unreadiness = Callable[[], str | None]


def operations_routes(
    registry: CollectorRegistry,
    unreadiness: Unreadiness,
    failed_networks: Callable[[], Iterable[tuple[str, str]]] = tuple,
    lacking_networks: Callable[[], Iterable[tuple[str, str]]] = tuple,
    *,
    open_metrics: bool = False,
) -> list[GuardedRoute]:
    """The routes /metrics, in the form that the scraper asks for, /healthz and /readyz.

    Args:
        failed_networks: the networks and versions that did not load, as `NetworkRegistry.failed`.
            The server is ready without them, because it serves the others. Removing a replica for
            one network would remove the others too.
        lacking_networks: those that are loaded and lack a network that they run, and why.
    """
    scrapes = anyio.CapacityLimiter(1)

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # On another thread: with hundreds of networks it takes long enough to delay requests.
        body = await anyio.to_thread.run_sync(encode, registry, limiter=scrapes)
        return Response(body, headers={"content-type": content_type})

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(_: Request) -> Response:
        why_not = unreadiness()
        if why_not is None:
            lines = ["ready"]
            if CALLER.get().may(Role.READ):
                lines += [
                    f"network {name}{f' version {version}' if version else ''} failed to load"
                    for name, version in failed_networks()
                ]
                lines += [f"network {name} is not ready: {why}" for name, why in lacking_networks()]
            return PlainTextResponse("\n".join([*lines, ""]))
        return PlainTextResponse(f"{why_not}\n", HTTPStatus.SERVICE_UNAVAILABLE)

    role = Role.OPEN if open_metrics else Role.READ
    return [
        GuardedRoute("/metrics", metrics, {"GET": role}),
        GuardedRoute("/healthz", healthz, {"GET": Role.OPEN}),
        GuardedRoute("/readyz", readyz, {"GET": Role.OPEN}),
    ]
