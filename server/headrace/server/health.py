"""What grpc.health.v1 says: the server under "" and its own name, each network under its name."""

from __future__ import annotations

from grpc_health.v1 import health, health_pb2

SERVICE = "headrace.v1.InferenceEngine"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthReporter:
    """The handle by which the server tells its health; `servicer` is what is registered."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()

    async def start(self) -> None:
        """The server listens but is not ready."""
        await self._set_server(_NOT_SERVING)

    async def ready(self) -> None:
        await self._set_server(_SERVING)

    async def network_ready(self, name: str) -> None:
        await self.servicer.set(name, _SERVING)

    async def network_failed(self, name: str) -> None:
        await self.servicer.set(name, _NOT_SERVING)

    async def network_gone(self, name: str) -> None:
        await self.servicer.set(name, _UNKNOWN)

    async def drain(self) -> None:
        """Everything is NOT_SERVING from now on, whatever is said later."""
        await self.servicer.enter_graceful_shutdown()

    async def _set_server(self, status: int) -> None:
        for service in ("", SERVICE):
            await self.servicer.set(service, status)
