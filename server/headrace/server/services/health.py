"""The grpc.health.v1 service.

It lists the server under "" and the names of its services, and each network under its own name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from typing import Any

from grpc_health.v1 import health_pb2

from headrace.runtime.errors import NotFound, Unavailable
from headrace.runtime.loading.registry import NetworkState
from headrace.server.access.identity import Role
from headrace.server.access.refusal import require
from headrace.server.services.open_inference.service import SERVICE as OPEN_INFERENCE

SERVICE = "headrace.v1.InferenceEngine"
HEALTH = "grpc.health.v1.Health"

_SERVER = ("", SERVICE, OPEN_INFERENCE)
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService:
    """The protocol over a table of statuses. Belongs to the event loop's thread.

    The servicer of grpcio-health-checking keeps every name for ever. There, a watcher that does not
    read holds the lock, so that nobody can set a status. Here, a change only wakes the watchers.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._closed = False

    def set(self, service: str, status: int | None) -> None:
        """Changes a status. None removes the service."""
        if status is None:
            self._statuses.pop(service, None)
        else:
            self._statuses[service] = status
        for changed in self._watchers.get(service, ()):
            changed.set()

    def services(self) -> list[str]:
        return list(self._statuses)

    def close(self) -> None:
        """Ends every watch. Otherwise, watches would last until the end of the grace period."""
        self._closed = True
        for watchers in self._watchers.values():
            for changed in watchers:
                changed.set()

    async def check(self, request: health_pb2.HealthCheckRequest, _: Any) -> Any:
        _check_caller(request.service)
        status = self._statuses.get(request.service)
        if status is None:
            raise NotFound(f"there is no service {request.service!r}", field="service")
        return health_pb2.HealthCheckResponse(status=status)

    async def list(self, _request: Any, _: Any) -> Any:
        statuses = {
            service: health_pb2.HealthCheckResponse(status=status)
            for service, status in self._statuses.items()
        }
        return health_pb2.HealthListResponse(statuses=statuses)

    async def watch(
        self, request: health_pb2.HealthCheckRequest, _: Any
    ) -> AsyncGenerator[bytes, None]:
        _check_caller(request.service)
        changed = asyncio.Event()
        watchers = self._watchers.setdefault(request.service, set())
        watchers.add(changed)
        last = None
        try:
            while True:
                changed.clear()
                status = self._statuses.get(request.service, _UNKNOWN)
                if status != last:
                    yield health_pb2.HealthCheckResponse(status=status).SerializeToString()
                    last = status
                if self._closed:
                    raise Unavailable("the server has shut down")
                await changed.wait()
        finally:
            watchers.discard(changed)
            if not watchers:
                self._watchers.pop(request.service, None)


def _check_caller(service: str) -> None:
    """Anybody may ask for the server's health. The health of a network needs the role read.

    Raises:
        Unauthenticated: the caller has no valid credential.
        PermissionDenied: the caller's role is too small.
    """
    if service not in _SERVER:
        require(Role.READ)


class HealthReporter:
    """Reports the server's health. `service` is the service that gRPC registers."""

    def __init__(self) -> None:
        self.service = HealthService()
        self._draining = False

    def start(self) -> None:
        """Reports that the server listens but is not ready."""
        self._set_server(_NOT_SERVING)

    def ready(self) -> None:
        self._set_server(_SERVING)

    def network_ready(self, name: str) -> None:
        self._set(name, _SERVING)

    def network_failed(self, name: str) -> None:
        self._set(name, _NOT_SERVING)

    def network_gone(self, name: str) -> None:
        self._set(name, None)

    def network_is(self, name: str, states: Collection[NetworkState]) -> None:
        """Sets the health of a network from the states of all its versions."""
        if NetworkState.READY in states:
            self.network_ready(name)
        elif NetworkState.FAILED in states:
            self.network_failed(name)
        elif not states:
            self.network_gone(name)

    def drain(self) -> None:
        """Sets everything to NOT_SERVING. Later changes have no effect."""
        self._draining = True
        for service in self.service.services():
            self.service.set(service, _NOT_SERVING)

    def close(self) -> None:
        """Ends the reports of health."""
        self.service.close()

    def _set_server(self, status: int) -> None:
        for service in _SERVER:
            self._set(service, status)

    def _set(self, service: str, status: int | None) -> None:
        if not self._draining:
            self.service.set(service, status)
