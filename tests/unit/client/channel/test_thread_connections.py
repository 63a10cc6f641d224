"""One connection of a synchronous channel, whose other end is in the test."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from headrace.client.channel import bounds
from headrace.client.channel.threads.channel import SocketStream, UnaryAnswer
from headrace.client.channel.threads.connection import SharedConnection
from tests.support import http2_ends as raw
from tests.support.patience import PATIENCE_SECONDS

HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
CALLERS = 16
BLOCK = raw.block(*raw.CALL)
PING = raw.frame(raw.PING, payload=bytes(8))  # has to be answered
MAX_CONCURRENT_STREAMS = 3


def answer(stream: int) -> bytes:
    return (
        raw.headers(stream, flags=raw.END_HEADERS, call=HEAD)
        + raw.data(stream, raw.message(b"reply"))
        + raw.headers(stream, (b"grpc-status", b"0"), call=())
    )


class NoAttendant:
    def attend(self, connection: SharedConnection) -> None:
        raise AssertionError("a caller waits")


@contextmanager
def shared(*settings: tuple[int, int]) -> Iterator[tuple[SharedConnection, socket.socket]]:
    """A connection whose server has greeted, and the server's socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = SharedConnection(ours, None, bounds.limits(1 << 20), NoAttendant())
        theirs.sendall(raw.settings(*settings))
        assert connection.greet_now()
        connection.share()
        yield connection, theirs


def test_a_connection_that_breaks_after_its_last_reply_closes_its_socket() -> None:
    """A write fails, and nobody reads any more who would find out why."""
    with shared() as (connection, theirs):
        call = UnaryAnswer(connection, BLOCK, b"request")
        assert connection.begin(call)
        theirs.recv(65_536)
        theirs.sendall(answer(1) + PING)
        theirs.close()
        assert connection.wait(call, None)
        assert call.failure is None
        assert not connection.is_open
        assert connection.fileno() == -1


def test_all_whose_replies_come_together_return_beside_some_who_give_up() -> None:
    """They are woken one after the other, and who gives up must not keep the next one asleep."""
    with shared() as (connection, theirs), ThreadPoolExecutor(CALLERS) as pool:
        calls = [UnaryAnswer(connection, BLOCK, b"request") for _ in range(CALLERS)]
        assert all(map(connection.begin, calls))
        waits = [
            pool.submit(connection.wait, call, time.monotonic() + 0.01 if number % 2 else None)
            for number, call in enumerate(calls)
        ]
        theirs.sendall(b"".join(answer(2 * number + 1) for number in range(CALLERS)))
        futures.wait(waits)
        assert all(wait.result() for wait in waits[::2])
        assert [call.message for call in calls[::2]] == [b"reply"] * (CALLERS // 2)


def test_a_sender_goes_on_when_its_stream_has_stood_in_line() -> None:
    """Its message goes out at once when the stream opens, so no window's update wakes it."""
    with shared((MAX_CONCURRENT_STREAMS, 1)) as (connection, theirs):
        assert connection.begin(UnaryAnswer(connection, BLOCK, b"request"))
        channel: Any = SimpleNamespace(max_message_bytes=1 << 20)
        due = time.monotonic() + PATIENCE_SECONDS
        stream = SocketStream(channel, connection, BLOCK, due, None)
        assert connection.begin(stream)
        theirs.sendall(answer(1))
        assert stream.send(b"message")


def test_a_call_in_line_goes_out_when_the_server_allows_more_streams() -> None:
    with shared((MAX_CONCURRENT_STREAMS, 1)) as (connection, theirs), ThreadPoolExecutor(1) as pool:
        calls = [UnaryAnswer(connection, BLOCK, b"request") for _ in range(2)]
        assert all(map(connection.begin, calls))
        due = time.monotonic() + PATIENCE_SECONDS
        replied = pool.submit(connection.wait, calls[1], due)
        theirs.sendall(raw.settings((MAX_CONCURRENT_STREAMS, 2)))
        theirs.settimeout(PATIENCE_SECONDS)
        sent = b""
        while sent.count(b"request") < 2:
            sent += theirs.recv(65_536)
        theirs.sendall(answer(3))
        assert replied.result()
