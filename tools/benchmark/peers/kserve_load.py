"""Callers of KServe's client in closed loops, on one event loop: kserve_load.py ADDRESS CALLERS
SECONDS. Prints the number of replies, and the seconds that they took.

Runs in an environment of its own, which has KServe's SDK and nothing of headrace.
"""

from __future__ import annotations

import asyncio
import sys
import time

import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

X = np.ones((1, 16), np.float32)
WARM_UP = 50


async def main(address: str, callers: int, seconds: float) -> None:
    client = InferenceGRPCClient(address)

    async def infer() -> None:
        tensor = InferInput("x", list(X.shape), "FP32")
        tensor.set_data_from_numpy(X, binary_data=True)
        reply = await client.infer(InferRequest("tiny", [tensor]))
        reply.outputs[0].as_numpy()

    for _ in range(WARM_UP):
        await infer()
    replies, start = 0, time.monotonic()

    async def loop() -> None:
        nonlocal replies
        while time.monotonic() < start + seconds:
            await infer()
            replies += 1

    await asyncio.gather(*(loop() for _ in range(callers)))
    print(replies, time.monotonic() - start)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
