"""What `Connection.receive` tells its owner."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from headrace.http2.calls import RequestHead, ResponseHead, Trailers
from headrace.http2.messages import Message
from headrace.http2.streams import Stream


class CallOpened(NamedTuple):
    """A call begins (at a server).

    A request that is no call of gRPC is told when it has ended, or when it is long.
    """

    stream: Stream
    head: RequestHead


class ResponseStarted(NamedTuple):
    """A response begins (at a client)."""

    stream: Stream
    head: ResponseHead


class MessageReceived(NamedTuple):
    """A message has come. Its reader calls `Connection.read` when it has taken it."""

    stream: Stream
    message: Message


class MessageRefused(NamedTuple):
    """A message is not read, and nothing after it: too large, broken, or without room.

    Attributes:
        code: the number of gRPC's status for it.
    """

    stream: Stream
    code: int
    why: str


class StreamEnded(NamedTuple):
    """The peer sends nothing more on the stream. A server's last words are its trailers."""

    stream: Stream
    trailers: Trailers | None


class Reset(NamedTuple):
    """The stream is over: the peer reset it, or broke the protocol on it."""

    stream: Stream
    code: int
    why: str


class DataSent(NamedTuple):
    """Nothing of the stream's data is held back any more."""

    stream: Stream


class GoneAway(NamedTuple):
    """The peer takes no new streams. What it did not process begins above `last`."""

    last: int
    code: int
    why: str


Event: TypeAlias = (
    "CallOpened | ResponseStarted | MessageReceived | MessageRefused | "
    "StreamEnded | Reset | DataSent | GoneAway"
)
