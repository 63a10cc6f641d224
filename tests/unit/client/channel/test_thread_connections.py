"""One connection of a synchronous channel, whose other end is in the test."""

from __future__ import annotations

import socket
from typing import Any

from headrace.client.channel import bounds
from headrace.client.channel.answers import Answer
from headrace.client.channel.threads.connection import SharedConnection
from tests.support import http2_ends as raw

HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
ANSWER = (
    raw.headers(1, flags=raw.END_HEADERS, call=HEAD)
    + raw.data(1, raw.message(b"reply"))
    + raw.headers(1, (b"grpc-status", b"0"), call=())
)
PING = raw.frame(raw.PING, payload=bytes(8))  # has to be answered


class NoAttendant:
    def attend(self, connection: SharedConnection) -> None:
        raise AssertionError("a caller waits")


class Waits(Answer):
    """A call that a thread waits for."""

    def __init__(self, connection: SharedConnection) -> None:
        super().__init__(raw.block(*raw.CALL), b"request")
        self._connection = connection
        self.ready = False
        self.lock: Any = None

    def told(self) -> None:
        self._connection.wake(self)


def test_a_connection_that_breaks_after_its_last_reply_closes_its_socket() -> None:
    """A write fails, and nobody reads any more who would find out why."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = SharedConnection(ours, None, bounds.limits(1 << 20), NoAttendant())
    theirs.sendall(raw.settings())
    assert connection.greet_now()
    connection.share()
    call = Waits(connection)
    assert connection.begin(call)
    theirs.recv(65_536)
    theirs.sendall(ANSWER + PING)
    theirs.close()
    assert connection.wait(call, None)
    assert call.failure is None
    assert not connection.is_open
    assert connection.fileno() == -1
