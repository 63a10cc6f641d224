"""A hostile server ends in an error, and never in growing memory or in a call that hangs."""

from __future__ import annotations

import gzip
import itertools
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from headrace.client.channel.channel import CallFailed
from tests.support import http2_ends as raw
from tests.support.channel_callers import KINDS, calling
from tests.support.listeners import listening
from tests.support.patience import PATIENCE_SECONDS as SECONDS

MESSAGE_BYTES: Final = 1 << 20
FLOOD_BYTES: Final = 64 << 20
GROWTH_BYTES: Final = 24 << 20
HEAD: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
PIECE: Final = 16_384


def head(*more: tuple[bytes, bytes]) -> bytes:
    return raw.headers(1, *more, flags=raw.END_HEADERS, call=HEAD)


def table_bomb() -> Iterator[bytes]:
    """A field of 4 KB goes into the table once, and is named by one byte for ever."""
    entry = b"\x40\x01x\x7f" + b"\x81\x1e" + b"y" * 4000
    yield raw.frame(raw.HEADERS, raw.END_HEADERS, 1, raw.block(*HEAD) + entry)
    yield from itertools.repeat(raw.frame(raw.HEADERS, raw.END_HEADERS, 1, b"\xbe" * 10_000))


def packed_bomb() -> Iterator[bytes]:
    """A gigabyte of zeros in a megabyte."""
    bomb = raw.message(gzip.compress(bytes(256 << 20), 1), flags=1)
    yield head((b"grpc-encoding", b"gzip"))
    for start in range(0, len(bomb), PIECE):
        yield raw.data(1, bomb[start : start + PIECE])
    yield raw.headers(1, (b"grpc-status", b"0"), call=())


def unending(first: bytes, again: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: itertools.chain([first], itertools.repeat(again))


def continued(size: int) -> Callable[[], Iterator[bytes]]:
    more = raw.frame(raw.CONTINUATION, 0, 1, raw.field(b"a", b"b" * size) if size else b"")
    return unending(raw.frame(raw.HEADERS, 0, 1, raw.block(*HEAD)), more)


FLOODS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "pings": unending(b"", raw.frame(raw.PING, payload=b"12345678")),
    "settings": unending(b"", raw.settings((4, 65_535))),
    "priorities": unending(b"", raw.frame(raw.PRIORITY, 0, 1, b"\0\0\0\0\0")),
    "windows": unending(b"", raw.window_update(1, 1)),
    "unknown frames": unending(b"", raw.frame(200, 0, 1, bytes(1000))),
    "resets": unending(b"", raw.reset(1)),
    "empty data": unending(head(), raw.data(1, b"")),
    "padding": unending(head(), raw.frame(raw.DATA, raw.PADDED, 1, b"\xff" + bytes(255))),
    "interim responses": unending(b"", raw.headers(1, flags=4, call=((b":status", b"103"),))),
    "endless trailers": unending(head(), raw.headers(1, (b"a", b"b"), flags=4, call=())),
    "continued headers": continued(1000),
    "empty continuations": continued(0),
    "a huge header": unending(
        raw.frame(raw.HEADERS, 0, 1, raw.block(*HEAD, (b"a", b"b" * 10_000))),
        raw.frame(raw.CONTINUATION, 0, 1, bytes(PIECE)),
    ),
    "a bomb of headers": table_bomb,
    "a bomb in gzip": packed_bomb,
    "an endless message": unending(head() + raw.data(1, b"\0\xff\xff\xff\xff"),
                                   raw.data(1, bytes(PIECE))),
    "a second reply": unending(head(), raw.data(1, raw.message(bytes(1000)))),
    "empty messages": unending(head(), raw.data(1, raw.message() * 3000)),
    "frames that are too large": unending(b"", raw.frame(raw.PING, 0, 0, bytes(1 << 22))),
    "no HTTP/2": unending(b"", b"\xff" * 1000),
}  # fmt: skip


class Flooding:
    """Reads a call, and floods it.

    Attributes:
        sent: the bytes that were sent in one connection before it was ended; the most.
    """

    def __init__(self, flood: Callable[[], Iterator[bytes]]) -> None:
        self._flood = flood
        self.sent = 0

    def talk(self, accepted: socket.socket) -> None:
        accepted.sendall(raw.settings())
        while b"/t/M" not in (data := accepted.recv(65_536)):
            if not data:
                return
        sent = 0
        try:
            waiting = b""
            for piece in self._flood():
                waiting += piece
                if len(waiting) >= 65_536:
                    accepted.sendall(waiting)
                    sent += len(waiting)
                    waiting = b""
                if sent > FLOOD_BYTES:
                    break
            accepted.sendall(waiting)
            while accepted.recv(65_536):
                pass
        finally:
            self.sent = max(self.sent, sent)


def peak_bytes() -> int:
    """The most memory that this process has had since `forget_peak`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def forget_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize(
    "kind", ["threads", pytest.param("started", marks=pytest.mark.long), "tasks"]
)
def test_a_flood_ends_the_call_and_takes_no_memory(kind: str, flood: str) -> None:
    server = Flooding(FLOODS[flood])
    with (
        listening(server.talk) as port,
        calling(kind, f"127.0.0.1:{port}", max_message_bytes=MESSAGE_BYTES) as callers,
    ):
        before = forget_peak()
        with pytest.raises(CallFailed) as failed:
            callers.one("/t/M", b"request", timeout=SECONDS)
        grown = peak_bytes() - before
    assert failed.value.code is not grpc.StatusCode.DEADLINE_EXCEEDED
    assert grown < GROWTH_BYTES
    assert server.sent < FLOOD_BYTES


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_messages_that_nobody_reads_take_no_memory(kind: str) -> None:
    """A stream's caller does something else, and the server does not keep to the windows."""
    server = Flooding(unending(head(), raw.data(1, raw.message(bytes(16_000)))))
    with (
        listening(server.talk) as port,
        calling(kind, f"127.0.0.1:{port}", max_message_bytes=MESSAGE_BYTES) as callers,
    ):
        before = forget_peak()
        stream = callers.begun("/t/M")
        with pytest.raises(CallFailed) as failed:
            callers.one("/t/Other", timeout=SECONDS)
        grown = peak_bytes() - before
        assert stream.is_over
    assert failed.value.code is not grpc.StatusCode.DEADLINE_EXCEEDED
    assert grown < GROWTH_BYTES


def drip(accepted: socket.socket) -> None:
    """Answers byte by byte, and never ends."""
    accepted.sendall(raw.settings())
    while b"/t/M" not in accepted.recv(65_536):
        pass
    accepted.sendall(head() + raw.data(1, b"\0\0\1\0\0"))
    for piece in itertools.repeat(raw.data(1, b"x")):
        accepted.sendall(piece)
        time.sleep(0.05)


def silent(accepted: socket.socket) -> None:
    """Says nothing, not even that it speaks HTTP/2."""
    while accepted.recv(65_536):
        pass


def greets(accepted: socket.socket) -> None:
    """Says that it speaks HTTP/2, and nothing else."""
    accepted.sendall(raw.settings())
    silent(accepted)


over = threading.Event()
"""Whether the calls to a deaf server are over."""


def deaf(accepted: socket.socket) -> None:
    """Lets the client send as much as it likes, and reads nothing."""
    accepted.sendall(raw.settings((4, 2**31 - 1)) + raw.window_update(0, 2**31 - 65_536))
    over.wait(SECONDS)


@pytest.mark.parametrize("talk", [drip, silent, greets, deaf])
@pytest.mark.parametrize("size", [0, 5_000_000])
@pytest.mark.parametrize("kind", KINDS)
def test_no_call_outlives_its_deadline(kind: str, size: int, talk: Any) -> None:
    request = bytes(size)
    calls: list[tuple[str, Any, dict[str, Any]]] = [("/t/M", request, {"timeout": 0.5})] * 4
    over.clear()
    with listening(talk) as port, calling(kind, f"127.0.0.1:{port}") as callers:
        began = time.monotonic()
        outcomes = callers.all(calls)
        over.set()
        for outcome in outcomes:
            assert isinstance(outcome, CallFailed)
            assert outcome.code is grpc.StatusCode.DEADLINE_EXCEEDED or talk is silent
        assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize("kind", ["started", "tasks"])
def test_a_channel_that_is_closed_leaves_no_connection_to_a_silent_server(kind: str) -> None:
    """Nobody waits for the connection any more, which would have twenty seconds to come about."""
    came, ends = threading.Event(), queue.Queue[bool]()

    def waits(accepted: socket.socket) -> None:
        came.set()
        accepted.settimeout(10)
        try:
            silent(accepted)
        except TimeoutError:
            ends.put(False)
        else:
            ends.put(True)

    with listening(waits) as port:
        with calling(kind, f"127.0.0.1:{port}") as callers:
            with pytest.raises(CallFailed):
                callers.one("/t/M", timeout=0.2)
            assert came.wait(SECONDS)
        assert ends.get(timeout=SECONDS)
