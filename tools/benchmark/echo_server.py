"""The floor: grpc.aio on uvloop, bytes in, the same bytes out, in unary calls and in streams.

Prints its address when ready. It has the allocator of headrace, unless it is started with
``untuned``: then it is what a program of a few lines would be, and large messages cost it more.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import grpc
import uvloop

from headrace.runtime.system.allocator import tune_allocator

UNTUNED = "untuned"


async def echo(request: bytes, _: Any) -> bytes:
    return request


async def echo_stream(_: Any, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)


async def serve(methods: Mapping[str, grpc.RpcMethodHandler], service: str = "Echo") -> None:
    """Serves the methods on a free port, and prints the address."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    if sys.argv[1:] != [UNTUNED]:
        tune_allocator()
    methods = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Stream": grpc.stream_stream_rpc_method_handler(echo_stream),
    }
    uvloop.run(serve(methods))
