"""The service's methods, where the order of events on the loop matters."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from headrace.server.health import HealthReporter
from headrace.server.servicer import Servicer
from headrace.v1 import inference_engine_pb2 as pb


class LoadingCore:
    """A core that loads one network, for as long as the test likes, and cannot stop it any more."""

    limits = None

    def __init__(self) -> None:
        self.load: Future[Any] = Future()
        self.cancelled = False
        self.asked = asyncio.Event()

    def plugin(self, _: object) -> None: ...

    def load_network(self, *_: object, **__: object) -> Future[Any]:
        self.asked.set()
        return self.load

    def cancel_load(self, load: Future[Any]) -> None:
        assert load is self.load
        self.cancelled = True


async def check(health: HealthReporter, name: str) -> int:
    request = health_pb2.HealthCheckRequest(service=name)
    reply = await health.service.Check(request, None)
    return int(reply.status)


def test_a_network_is_healthy_although_whoever_loaded_it_left_as_it_was_ready() -> None:
    async def scenario() -> None:
        core, health = LoadingCore(), HealthReporter()
        core_: Any = core
        nothing: Any = None
        servicer = Servicer(core_, nothing, nothing, health, max_blob_bytes=1)
        model = pb.ModelSource(data=b"model")
        request = pb.LoadNetworkRequest(name="net", device="CPU", model=model)
        call = asyncio.create_task(servicer.load_network(request, None))
        await core.asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert core.cancelled
        core.load.set_result(object())
        await asyncio.sleep(0)  # the loop hears of it
        assert await check(health, "net") == health_pb2.HealthCheckResponse.SERVING

    asyncio.run(scenario())
