"""A server of grpcio's that listens when it is told to: absent_server.py FILE.

It reads a port from its standard input, listens on it, and says so. It notes the request of each
call that it begins in the file. SIGTERM stops it: calls that it has begun end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc


def main() -> None:
    noted = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(request: bytes, _: Any) -> bytes:
        os.write(noted, request + b"\n")
        return request

    handler = grpc.unary_unary_rpc_method_handler(note)
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("t", {"Many": handler, "Once": handler}),)
    )
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    print("loaded", flush=True)
    server.add_insecure_port(f"127.0.0.1:{int(sys.stdin.readline())}")
    server.start()
    print("listening", flush=True)
    stopping.wait()
    server.stop(5).wait()


if __name__ == "__main__":
    main()
