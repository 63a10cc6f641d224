"""The load of our client, in a process of its own: callers that call `infer` in closed loops.

Usage: client_load.py ADDRESS PID KIND CALLERS SECONDS NETWORK. PID is the server's process. KIND is
``threads`` or ``tasks``, or ``echo-threads`` or ``echo-tasks`` for gRPC's own unary calls to the
echo. Prints the number of replies, the seconds that they took, the median of a call's seconds, and
the server's processor time.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import psutil
import uvloop

from headrace.client import Client, aio

X = np.ones((1, 16), np.float32)
ECHO = b"x" * 110
"""As long as the message of a request with X."""
WARM_UP = 50


class Meter:
    """The replies of a load, and what they cost the server.

    Attributes:
        took: the seconds of each call.
    """

    def __init__(self, server: int) -> None:
        self.took: list[float] = []
        self._server = psutil.Process(server)
        self._start = self._used = 0.0

    def begin(self) -> None:
        self._start, self._used = time.monotonic(), self._processor_seconds()

    def report(self) -> None:
        seconds, used = time.monotonic() - self._start, self._processor_seconds() - self._used
        print(len(self.took), seconds, statistics.median(self.took), used)

    def _processor_seconds(self) -> float:
        times = self._server.cpu_times()
        return float(times.user + times.system)


def from_threads(call: Callable[[], Any], callers: int, seconds: float, meter: Meter) -> None:
    for _ in range(WARM_UP):
        call()
    meter.begin()
    end = time.monotonic() + seconds

    def loop() -> None:
        while (start := time.monotonic()) < end:
            call()
            meter.took.append(time.monotonic() - start)

    threads = [threading.Thread(target=loop) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meter.report()


async def from_tasks(
    call: Callable[[], Awaitable[Any]], callers: int, seconds: float, meter: Meter
) -> None:
    for _ in range(WARM_UP):
        await call()
    meter.begin()
    end = time.monotonic() + seconds

    async def loop() -> None:
        while (start := time.monotonic()) < end:
            await call()
            meter.took.append(time.monotonic() - start)

    await asyncio.gather(*(loop() for _ in range(callers)))
    meter.report()


async def tasks(address: str, kind: str, network: str, *load: Any) -> None:
    if kind == "echo-tasks":
        async with grpc.aio.insecure_channel(address) as channel:
            echo = channel.unary_unary("/Echo/Echo")
            await from_tasks(lambda: echo(ECHO, timeout=60.0), *load)
        return
    async with aio.Client(address) as client:
        found = await client.network(network)
        await from_tasks(lambda: found.infer({"x": X}), *load)


def main(address: str, server: int, kind: str, callers: int, seconds: float, network: str) -> None:
    load = callers, seconds, Meter(server)
    if kind.endswith("tasks"):
        uvloop.run(tasks(address, kind, network, *load))
    elif kind == "echo-threads":
        with grpc.insecure_channel(address) as channel:
            echo = channel.unary_unary("/Echo/Echo")
            from_threads(lambda: echo(ECHO, timeout=60.0), *load)
    else:
        with Client(address) as client:
            found = client.network(network)
            from_threads(lambda: found.infer({"x": X}), *load)


if __name__ == "__main__":
    where, process, *how = sys.argv[1:]
    main(where, int(process), how[0], int(how[1]), float(how[2]), how[3])
