"""The floor with ONNX Runtime behind it: grpc.aio on uvloop; a call runs a network. Nothing is
parsed, checked, queued or counted.

Usage: bare_runtime MODEL [THREADS]. Prints its address when ready. The network runs on constant
values on the event loop, and a call gets its own bytes back. With THREADS, the last bytes of a call
are the network's only input, so many threads run the network, and a call gets its first output's
bytes: as little as a server for images can do.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any, TypeAlias

import grpc
import numpy as np
import onnxruntime
import uvloop

from headrace.runtime.system.allocator import tune_allocator
from tools.benchmark.echo_server import serve
from tools.benchmark.inprocess import DTYPES

Handler: TypeAlias = Callable[[bytes, Any], Awaitable[bytes]]


def inline(session: onnxruntime.InferenceSession) -> Handler:
    inputs = {each.name: np.ones(each.shape, np.float32) for each in session.get_inputs()}
    outputs = [each.name for each in session.get_outputs()]

    async def echo(request: bytes, _: Any) -> bytes:
        session.run(outputs, inputs)
        return request

    return echo


def on_threads(session: onnxruntime.InferenceSession, threads: int) -> Handler:
    image, pool = session.get_inputs()[0], ThreadPoolExecutor(threads)
    dtype, count = np.dtype(DTYPES[image.type]), prod(image.shape)

    def run(request: bytes) -> bytes:
        start = len(request) - count * dtype.itemsize
        values = np.frombuffer(request, dtype, count, start).reshape(image.shape)
        output: bytes = session.run(None, {image.name: values})[0].tobytes()
        return output

    async def infer(request: bytes, _: Any) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(pool, run, request)

    return infer


async def main(path: str, threads: int = 0) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    handler = on_threads(session, threads) if threads else inline(session)
    await serve({"Echo": grpc.unary_unary_rpc_method_handler(handler)})


if __name__ == "__main__":
    tune_allocator()
    uvloop.run(main(sys.argv[1], *map(int, sys.argv[2:])))
