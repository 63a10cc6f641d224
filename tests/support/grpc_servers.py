"""Servers of gRPC's own libraries, which our channels call: grpcio's two, and one in C++."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from tests.support.cpp import compiled
from tests.support.patience import PATIENCE_SECONDS

DETAILS: Final = "ä % + \n“quoted”"
TRAILING: Final = (("text", "a, b"), ("some-bin", b"\x00\xff,\xfe"), ("some-bin", b""))
"""The metadata at the end of calls that fail."""
CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_HANG_SECONDS: Final = 2 * PATIENCE_SECONDS
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 16),
]


def told(metadata: Sequence[tuple[str, str | bytes]]) -> bytes:
    """Metadata in order, one a line: the key, and the value in hexadecimal."""
    pairs = [(key, value.encode() if isinstance(value, str) else value) for key, value in metadata]
    return "".join(f"{key} {value.hex()}\n" for key, value in sorted(pairs)).encode()


class Served:
    """A server, and what it does.

    Attributes:
        address: where it listens.
    """

    def __init__(self) -> None:
        self.address = ""
        self._events: dict[tuple[str, bytes], threading.Event] = {}

    def began(self, request: bytes) -> threading.Event:
        """Whether the server has begun a call that hangs; its request tells which one."""
        return self._events.setdefault(("began", request), threading.Event())

    def ended(self, request: bytes) -> threading.Event:
        """Whether the server has seen the end of a call that hangs."""
        return self._events.setdefault(("ended", request), threading.Event())

    def status(self, request: bytes, context: Any) -> Any:
        context.set_trailing_metadata(TRAILING)
        return context.abort(CODES[int(request)], DETAILS)

    def metadata(self, _: bytes, context: Any) -> bytes:
        return told([each for each in context.invocation_metadata() if each[0].startswith("t-")])

    def left(self, _: bytes, context: Any) -> bytes:
        return repr(context.time_remaining()).encode()


def handlers(served: Served, asynchronous: bool) -> Any:
    def echo(request: bytes, _: Any) -> bytes:
        return request

    def packed(request: bytes, context: Any) -> bytes:
        context.set_compression(grpc.Compression.Gzip)
        return request

    def hang(request: bytes, context: Any) -> bytes:
        ended = served.ended(request)
        if not context.add_callback(ended.set):  # the call is over already
            ended.set()
        served.began(request).set()
        while context.is_active():
            time.sleep(0.01)
        return b""

    async def hang_async(request: bytes, _: Any) -> bytes:
        served.began(request).set()
        try:
            await asyncio.sleep(_HANG_SECONDS)
        finally:
            served.ended(request).set()
        return b""

    def chat(requests: Any, _: Any) -> Iterator[bytes]:
        yield from requests

    async def chat_async(requests: Any, _: Any) -> Any:
        async for request in requests:
            yield request

    def count(request: bytes, _: Any) -> Iterator[bytes]:
        yield from (b"%d" % number for number in range(int(request)))

    async def count_async(request: bytes, _: Any) -> Any:
        for number in range(int(request)):
            yield b"%d" % number

    def total(requests: Any, _: Any) -> bytes:
        return b"%d" % sum(map(len, requests))

    async def total_async(requests: Any, _: Any) -> bytes:
        return b"%d" % sum([len(request) async for request in requests])

    def made(function: Callable[..., Any]) -> Any:
        if not asynchronous:
            return grpc.unary_unary_rpc_method_handler(function)

        async def awaited(request: bytes, context: Any) -> Any:
            found = function(request, context)
            return await found if asyncio.iscoroutine(found) else found

        return grpc.unary_unary_rpc_method_handler(awaited)

    return grpc.method_handlers_generic_handler(
        "t",
        {
            "Echo": made(echo),
            "Packed": made(packed),
            "Status": made(served.status),
            "Metadata": made(served.metadata),
            "Left": made(served.left),
            "Hang": made(hang_async if asynchronous else hang),
            "Chat": grpc.stream_stream_rpc_method_handler(chat_async if asynchronous else chat),
            "Count": grpc.unary_stream_rpc_method_handler(count_async if asynchronous else count),
            "Total": grpc.stream_unary_rpc_method_handler(total_async if asynchronous else total),
        },
    )


@contextmanager
def grpcio() -> Iterator[Served]:
    """grpcio's server on threads."""
    served = Served()
    made = grpc.server(ThreadPoolExecutor(40), options=_OPTIONS)
    made.add_generic_rpc_handlers((handlers(served, asynchronous=False),))
    served.address = f"127.0.0.1:{made.add_insecure_port('127.0.0.1:0')}"
    made.start()
    yield served
    made.stop(None).wait()


@contextmanager
def grpcio_aio() -> Iterator[Served]:
    """grpcio's server on asyncio."""
    served = Served()
    started, stopping = threading.Event(), threading.Event()

    async def run() -> None:
        aio = grpc.aio.server(options=_OPTIONS)
        aio.add_generic_rpc_handlers((handlers(served, asynchronous=True),))
        served.address = f"127.0.0.1:{aio.add_insecure_port('127.0.0.1:0')}"
        await aio.start()
        started.set()
        await asyncio.to_thread(stopping.wait)
        await aio.stop(None)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    started.wait()
    yield served
    stopping.set()
    thread.join()


@contextmanager
def cpp(folder: Path) -> Iterator[Served]:
    """The server of gRPC's library in C++, compiled in a folder."""
    program = compiled(Path(__file__).with_name("grpc_server.cc"), folder)
    served = Served()
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        served.address = f"127.0.0.1:{int(process.stdout.readline())}"
        lines = process.stdout

        def follow() -> None:
            for line in lines:
                what, _, request = line.rstrip("\n").partition(" ")
                event = served.began if what == "began" else served.ended
                event(request.encode()).set()

        reader = threading.Thread(target=follow)
        reader.start()
        yield served
        process.stdin.close()
        reader.join()
