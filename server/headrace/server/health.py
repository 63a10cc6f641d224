"""What grpc.health.v1 says: the server under "" and its own name, each network under its name."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE = "headrace.v1.InferenceEngine"
HEALTH = "grpc.health.v1.Health"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The protocol over a table of statuses. Belongs to the event loop's thread.

    grpcio-health-checking's own keeps every name for ever, and a watcher that does not read keeps
    its lock from whoever sets a status. Here a change only wakes the watchers.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._closed = False

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to a server that has not started.

        The generated function registers each method with gRPC's core as well, which then waits for
        each one's next call by itself: 5 to 9 µs more for every call of any method.
        """
        reply = health_pb2.HealthCheckResponse.SerializeToString
        check = health_pb2.HealthCheckRequest.FromString
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self.Check, check, reply),
            "List": grpc.unary_unary_rpc_method_handler(
                self.List,
                health_pb2.HealthListRequest.FromString,
                health_pb2.HealthListResponse.SerializeToString,
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(self.Watch, check, reply),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH, methods),))

    def set(self, service: str, status: int | None) -> None:
        """Changes a status; None: there is no such service any more."""
        if status is None:
            self._statuses.pop(service, None)
        else:
            self._statuses[service] = status
        for changed in self._watchers.get(service, ()):
            changed.set()

    def services(self) -> list[str]:
        return list(self._statuses)

    def close(self) -> None:
        """Ends every watch, which would else last until the server's grace period is over."""
        self._closed = True
        for watchers in self._watchers.values():
            for changed in watchers:
                changed.set()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"service: there is no {request.service!r}"
            )
        return health_pb2.HealthCheckResponse(status=status)

    async def List(self, _request: Any, _context: Any) -> Any:  # noqa: N802 - the protocol's name
        statuses = {
            service: health_pb2.HealthCheckResponse(status=status)
            for service, status in self._statuses.items()
        }
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - the protocol's name
        changed = asyncio.Event()
        watchers = self._watchers.setdefault(request.service, set())
        watchers.add(changed)
        last = None
        try:
            while True:
                changed.clear()
                status = self._statuses.get(request.service, _UNKNOWN)
                if status != last:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    last = status
                if self._closed:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the server has shut down")
                await changed.wait()
        finally:
            watchers.discard(changed)
            if not watchers:
                self._watchers.pop(request.service, None)


class HealthReporter:
    """The handle by which the server tells its health; `service` is what is registered."""

    def __init__(self) -> None:
        self.service = HealthService()
        self._draining = False

    def start(self) -> None:
        """The server listens but is not ready."""
        self._set_server(_NOT_SERVING)

    def ready(self) -> None:
        self._set_server(_SERVING)

    def network_ready(self, name: str) -> None:
        self._set(name, _SERVING)

    def network_failed(self, name: str) -> None:
        self._set(name, _NOT_SERVING)

    def network_gone(self, name: str) -> None:
        self._set(name, None)

    def drain(self) -> None:
        """Everything is NOT_SERVING from now on, whatever is said later."""
        self._draining = True
        for service in self.service.services():
            self.service.set(service, _NOT_SERVING)

    def close(self) -> None:
        """Nothing more will be told."""
        self.service.close()

    def _set_server(self, status: int) -> None:
        for service in ("", SERVICE):
            self._set(service, status)

    def _set(self, service: str, status: int | None) -> None:
        if not self._draining:
            self.service.set(service, status)
