"""Puts the services of a replica onto the gRPC server that Ray Serve opens for it.

Serve calls `add_to_server` with each of its gRPC servers, because its configuration names the
function. Serve's own way of handling a call would parse and copy every message, and knows no status
details. So the methods are registered as they are: a call goes from HAProxy to the boundary.
"""

from __future__ import annotations

from typing import Any, Protocol

import grpc

_UNAVAILABLE = "no replica of the cluster takes requests at the moment; try again"


class ServedReplica(Protocol):
    """What runs on Serve's gRPC server."""

    def mount(self, server: grpc.aio.Server) -> None:
        """Registers the methods with a server that has not started. Called on its event loop."""

    async def start(self) -> None:
        """Gets ready. The server opens its port after that."""

    async def stop(self, seconds: float) -> None:
        """Finishes what is in progress within so many seconds."""


_hosted: ServedReplica | None = None


def host(hosted: ServedReplica) -> None:
    """Says what this process serves. The process has one replica."""
    global _hosted
    _hosted = hosted


def add_to_server(_servicer: Any, server: grpc.aio.Server) -> None:
    """Registers the services. In Serve's own proxies, which HAProxy uses if there is no replica,
    every call is refused."""
    if _hosted is None:
        register(server, _Refusals())
        return
    _hosted.mount(server)
    _follow_life(_hosted, server)


def register(server: grpc.aio.Server, handlers: grpc.GenericRpcHandler) -> None:
    """Registers handlers as they are. Serve's subclass of gRPC's server would replace them."""
    super(type(server), server).add_generic_rpc_handlers((handlers,))


def _follow_life(hosted: ServedReplica, server: Any) -> None:
    """Has the replica get ready before Serve opens the port, and drain before Serve closes it."""
    open_port, close = server.start, server.stop

    async def start() -> None:
        await hosted.start()
        await open_port()

    async def stop(seconds: float | None) -> None:
        await hosted.stop(seconds or 0.0)
        await close(seconds)

    server.start, server.stop = start, stop


class _Refusals(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses every call to a service that is not Ray's own."""

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        if details.method.startswith("/ray."):
            return None
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_messages: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, _UNAVAILABLE)
