"""Work of requests on other threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from headrace.server.serving.offload import HEAVY_ELEMENTS, offload
from tests.support.gate import Gate


def test_a_request_waits_for_no_call_that_waits_for_the_disk() -> None:
    gate = Gate()

    async def scenario() -> str:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        waiting = loop.run_in_executor(None, gate)
        name = await offload(lambda: threading.current_thread().name, HEAVY_ELEMENTS + 1)
        gate.open()
        await waiting
        return name

    assert asyncio.run(scenario()).startswith("offload")
