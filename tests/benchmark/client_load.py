"""The load of our client, in a process of its own: callers that call `infer` in closed loops.

Usage: client_load.py ADDRESS KIND CALLERS SECONDS NETWORK, where KIND is ``threads`` or ``tasks``,
or ``echo-threads`` or ``echo-tasks`` for gRPC's own unary calls to the echo. Prints the number of
replies, the seconds that they took, and the median of a call's seconds.
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
import uvloop

from headrace.client import Client, aio

X = np.ones((1, 16), np.float32)
ECHO = b"x" * 110
"""As long as the message of a request with X."""
WARM_UP = 50


def from_threads(call: Callable[[], Any], callers: int, seconds: float) -> list[float]:
    for _ in range(WARM_UP):
        call()
    end = time.monotonic() + seconds
    took: list[list[float]] = [[] for _ in range(callers)]

    def loop(mine: list[float]) -> None:
        while (start := time.monotonic()) < end:
            call()
            mine.append(time.monotonic() - start)

    threads = [threading.Thread(target=loop, args=(mine,)) for mine in took]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each for mine in took for each in mine]


async def from_tasks(call: Callable[[], Awaitable[Any]], callers: int, seconds: float) -> Any:
    for _ in range(WARM_UP):
        await call()
    end = time.monotonic() + seconds
    took: list[float] = []

    async def loop() -> None:
        while (start := time.monotonic()) < end:
            await call()
            took.append(time.monotonic() - start)

    await asyncio.gather(*(loop() for _ in range(callers)))
    return took


async def tasks(address: str, kind: str, callers: int, seconds: float, network: str) -> Any:
    if kind == "echo-tasks":
        async with grpc.aio.insecure_channel(address) as channel:
            echo = channel.unary_unary("/Echo/Echo")
            return await from_tasks(lambda: echo(ECHO, timeout=60.0), callers, seconds)
    async with aio.Client(address) as client:
        found = await client.network(network)
        return await from_tasks(lambda: found.infer({"x": X}), callers, seconds)


def main(address: str, kind: str, callers: int, seconds: float, network: str) -> None:
    start = time.monotonic()
    if kind.endswith("tasks"):
        took = uvloop.run(tasks(address, kind, callers, seconds, network))
    elif kind == "echo-threads":
        with grpc.insecure_channel(address) as channel:
            echo = channel.unary_unary("/Echo/Echo")
            took = from_threads(lambda: echo(ECHO, timeout=60.0), callers, seconds)
    else:
        with Client(address) as client:
            found = client.network(network)
            took = from_threads(lambda: found.infer({"x": X}), callers, seconds)
    print(len(took) + WARM_UP, time.monotonic() - start, statistics.median(took))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
