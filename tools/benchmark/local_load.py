"""The load of a local client, in a process of its own: closed loops of `infer`.

Usage: local_load.py TARGET WAY NETWORK ROWS CALLERS SECONDS, where WAY is ``message``, ``shared``,
or ``stream`` for shared memory with `infer_many`. Prints the number of replies and the seconds that
they took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.client import aio
from headrace.client.shared_memory import sharing


async def main(
    target: str, way: str, name: str, rows: int, callers: int, seconds: float
) -> tuple[int, float]:
    if way != "message":
        sharing.HANDED_LEAST_BYTES = 1  # type: ignore[misc]
    inputs = {"x": np.ones((rows, 1024), np.float32)}
    async with aio.Client(target, shared_memory=way != "message") as client:
        network = await client.network(name)
        await asyncio.gather(*(network.infer(inputs) for _ in range(callers)))
        start = time.monotonic()
        end = start + seconds

        def endless() -> Iterator[dict[str, Any]]:
            while time.monotonic() < end:
                yield inputs

        async def loop() -> int:
            return sum([1 for _ in endless() if await network.infer(inputs)])

        if way == "stream":
            count = 0
            async for _, result in network.infer_many(endless(), in_flight=callers):
                if isinstance(result, Exception):
                    raise result
                count += 1
        else:
            count = sum(await asyncio.gather(*(loop() for _ in range(callers))))
        return count, time.monotonic() - start


if __name__ == "__main__":
    target, way, name = sys.argv[1:4]
    rows, callers = map(int, sys.argv[4:6])
    print(*asyncio.run(main(target, way, name, rows, callers, float(sys.argv[6]))))
