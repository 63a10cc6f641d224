"""The floor with ONNX Runtime behind it: grpc.aio on uvloop; a call runs a network on constant
values and gets its own bytes back. Nothing is parsed, checked, queued or counted.

Usage: bare_runtime.py MODEL. Prints its address when ready.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
import numpy as np
import onnxruntime
import uvloop

from headrace.runtime.system.allocator import tune_allocator


async def main(path: str) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {each.name: np.ones(each.shape, np.float32) for each in session.get_inputs()}
    outputs = [each.name for each in session.get_outputs()]

    async def echo(request: bytes, _: Any) -> bytes:
        session.run(outputs, inputs)
        return request

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    tune_allocator()
    uvloop.run(main(sys.argv[1]))
