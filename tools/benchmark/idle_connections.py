"""Opens connections, lets each have one reply, and keeps them.

Usage: idle_connections.py ADDRESS METHOD MESSAGE_FILE COUNT, where METHOD is a unary method's path.
Prints a line when all have had their reply, and ends when its input does.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import grpc

OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


def main(address: str, method: str, message: bytes, count: int) -> None:
    with ExitStack() as stack:
        for _ in range(count):
            channel = stack.enter_context(grpc.insecure_channel(address, OPTIONS))
            channel.unary_unary(method)(message, timeout=60.0, wait_for_ready=True)
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]).read_bytes(), int(sys.argv[4]))
