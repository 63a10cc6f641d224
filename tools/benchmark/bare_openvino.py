"""The floor with OpenVINO behind it: grpc.aio on uvloop, a float32 image's bytes in, the bytes of
OpenVINO's output out; nothing is checked, queued, counted or cancelled. Prints its address when
ready.

Usage: bare_openvino.py MODEL PRECISION
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import uvloop

sys.path.insert(0, str(Path(__file__).parents[2]))

from headrace.plugins.openvino.library import openvino
from headrace.runtime.system.allocator import tune_allocator
from headrace.runtime.system.processors import usable_processors
from tools.benchmark.echo_server import serve


async def main(path: str, precision: str) -> None:
    streams = usable_processors()
    properties = {
        "INFERENCE_PRECISION_HINT": precision,
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": streams,
    }
    model = openvino.Core().compile_model(path, "CPU", properties)
    shape = tuple(model.inputs[0].shape)
    idle: SimpleQueue[openvino.InferRequest] = SimpleQueue()
    for _ in range(streams):
        idle.put(model.create_infer_request())
    pool = ThreadPoolExecutor(streams)

    def run(data: bytes) -> bytes:
        image = np.frombuffer(data, np.float32).reshape(shape)
        request = idle.get()
        request.set_input_tensor(openvino.Tensor(image, shared_memory=False))
        request.infer(share_inputs=True, share_outputs=True)
        output = request.get_output_tensor().data.tobytes()
        idle.put(request)
        return bytes(output)

    async def infer(data: bytes, _: Any) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(pool, run, data)

    await serve({"Infer": grpc.unary_unary_rpc_method_handler(infer)}, "Bare")


if __name__ == "__main__":
    tune_allocator()
    uvloop.run(main(*sys.argv[1:]))
