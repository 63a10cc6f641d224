"""The grpc.health.v1 service.

It lists the server under "" and the names of its services, and each network under its own name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Set
from typing import Any

from grpc_health.v1 import health_pb2

from headrace.runtime.errors import NotFound, Unavailable
from headrace.runtime.loading.entry import SERVING, NetworkState
from headrace.server.access.identity import Role
from headrace.server.access.networks import Networks
from headrace.server.access.refusal import require
from headrace.server.services.open_inference.service import SERVICE as OPEN_INFERENCE

SERVICE = "headrace.v1.InferenceEngine"
HEALTH = "grpc.health.v1.Health"
OWN = ("", SERVICE, OPEN_INFERENCE)
"""The names of the server itself and of its services."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService:
    """The protocol over a table of statuses. Belongs to the event loop's thread.

    The servicer of grpcio-health-checking keeps every name for ever. There, a watcher that does not
    read holds the lock, so that nobody can set a status. Here, a change only wakes the watchers.

    Args:
        networks: says which networks a caller means and sees.
    """

    def __init__(self, networks: Networks) -> None:
        self._networks = networks
        self._statuses: dict[str, int] = {}  # of the server's services, and of full names
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
        status = self._status(self._names(request.service))
        if status is None:
            raise NotFound(f"there is no service {request.service!r}", field="service")
        return health_pb2.HealthCheckResponse(status=status)

    async def list(self, _request: Any, _: Any) -> Any:
        networks = self._networks
        statuses = {
            name if name in OWN else networks.shown(name): health_pb2.HealthCheckResponse(
                status=status
            )
            for name, status in self._statuses.items()
            if name in OWN or networks.sees(name)
        }
        return health_pb2.HealthListResponse(statuses=statuses)

    async def watch(
        self, request: health_pb2.HealthCheckRequest, _: Any
    ) -> AsyncGenerator[bytes, None]:
        _check_caller(request.service)
        changed, last = asyncio.Event(), None
        names = self._names(request.service)
        for name in names:
            self._watchers.setdefault(name, set()).add(changed)
        try:
            while True:
                changed.clear()
                status = self._status(names) or _UNKNOWN
                if status != last:
                    yield health_pb2.HealthCheckResponse(status=status).SerializeToString()
                    last = status
                if self._closed:
                    raise Unavailable("the server has shut down")
                await changed.wait()
        finally:
            for name in names:
                watchers = self._watchers[name]
                watchers.discard(changed)
                if not watchers:
                    del self._watchers[name]

    def _names(self, service: str) -> tuple[str, ...]:
        """The names that a caller's name may stand for. The first with a status is meant."""
        return (service,) if service in OWN else self._networks.names(service)

    def _status(self, names: tuple[str, ...]) -> int | None:
        return next((self._statuses[name] for name in names if name in self._statuses), None)


def _check_caller(service: str) -> None:
    """Anybody may ask for the server's health. The health of a network needs the role read.

    Raises:
        Unauthenticated: the caller has no valid credential.
        PermissionDenied: the caller's role is too small.
    """
    if service not in OWN:
        require(Role.READ)


class HealthReporter:
    """Reports the server's health, and that of networks by their full names.

    A network that has the name of a service of the server is left out.

    Attributes:
        service: the service that gRPC registers.
    """

    def __init__(self, networks: Networks) -> None:
        self.service = HealthService(networks)
        self._draining = False

    def start(self) -> None:
        """Reports that the server listens but is not ready."""
        self._set_server(_NOT_SERVING)

    def ready(self) -> None:
        self._set_server(_SERVING)

    def network_ready(self, name: str) -> None:
        self._set_network(name, _SERVING)

    def network_failed(self, name: str) -> None:
        self._set_network(name, _NOT_SERVING)

    def network_gone(self, name: str) -> None:
        self._set_network(name, None)

    def network_is(self, name: str, states: Set[NetworkState]) -> None:
        if not states.isdisjoint(SERVING):
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
        self.service.close()

    def _set_server(self, status: int) -> None:
        for service in OWN:
            self._set(service, status)

    def _set_network(self, name: str, status: int | None) -> None:
        if name not in OWN:
            self._set(name, status)

    def _set(self, service: str, status: int | None) -> None:
        if not self._draining:
            self.service.set(service, status)
