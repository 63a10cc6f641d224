"""Callers that infer without a pause: closed_loop.py sync|aio ADDRESS REQUEST_FILE CALLERS.

Prints "calling" once every caller has had a reply, and at the end of its input every status with
its number.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import grpc

METHOD = "/headrace.v1.InferenceEngine/Infer"
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]  # a connection for each


class Seen:
    """Statuses; thread-safe for threads that have one caller each."""

    def __init__(self, callers: int) -> None:
        self.counts: list[Counter[int]] = []
        self._left = threading.Semaphore(callers - 1)

    def caller(self) -> Counter[int]:
        self.counts.append(Counter())
        return self.counts[-1]

    def called(self) -> None:
        if not self._left.acquire(blocking=False):
            print("calling", flush=True)

    def tell(self) -> None:
        for code, count in sum(self.counts, Counter()).items():
            print(code, count)


def sync(address: str, request: bytes, callers: int, seen: Seen) -> None:
    stop = threading.Event()

    def call() -> None:
        mine = seen.caller()
        with grpc.insecure_channel(address, OPTIONS) as channel:
            infer = channel.unary_unary(METHOD)
            while not stop.is_set():
                ended: Any = infer.future(request)
                mine[ended.code().value[0]] += 1
                if mine.total() == 1:
                    seen.called()

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()


async def aio(address: str, request: bytes, callers: int, seen: Seen) -> None:
    stop = asyncio.Event()

    async def call() -> None:
        mine = seen.caller()
        async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
            infer = channel.unary_unary(METHOD)
            while not stop.is_set():
                mine[(await infer(request).code()).value[0]] += 1
                if mine.total() == 1:
                    seen.called()

    calls = [asyncio.create_task(call()) for _ in range(callers)]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    stop.set()
    await asyncio.gather(*calls)


def main() -> None:
    kind, address, file, number = sys.argv[1:]
    callers = int(number)
    seen = Seen(callers)
    request = Path(file).read_bytes()
    if kind == "aio":
        asyncio.run(aio(address, request, callers, seen))
    else:
        sync(address, request, callers, seen)
    seen.tell()


if __name__ == "__main__":
    main()
