"""The interface of a channel: calls of gRPC to one server.

A channel knows bytes, times and statuses. What the messages mean, the token and the traces belong
to `headrace.client.transport`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import grpc

Metadata: TypeAlias = "Sequence[tuple[str, str | bytes]]"
Buffer: TypeAlias = "bytes | bytearray | memoryview"
Request: TypeAlias = "Buffer | Sequence[Buffer]"
"""One serialised message, or its parts in order, which are not joined. They must not change until
the call has ended."""
Message: TypeAlias = bytes
"""One serialised message. A large one is a memoryview, which all readers of messages take, too."""
Ended: TypeAlias = "Callable[[grpc.StatusCode], object]"

CANCELLED_HERE: Final = "Locally cancelled by application!"
"""The text of a call that its caller has cancelled, as grpcio has it."""
CLOSED_HERE: Final = "Channel closed!"
"""The text of a call whose channel was closed."""


class CallFailed(Exception):
    """A call ended with a status that is not OK.

    Attributes:
        code: the status.
        message: its text.
        trailing: the metadata that the server sent with it.
        begun: whether the server may have begun the call.
        unreachable: whether no connection came about. `message` then says why.
        lasts: whether connecting again is of no use.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        trailing: Metadata = (),
        *,
        begun: bool = True,
        unreachable: bool = False,
        lasts: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.trailing = trailing
        self.begun = begun
        self.unreachable = unreachable
        self.lasts = lasts


def late() -> CallFailed:
    """The failure of a call whose time is up."""
    return CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


def unconnected(name: object) -> CallFailed:
    """The failure of a call whose time is up before there is a connection."""
    why = (
        f"time was up before the server at {name} could be reached; see whether it is there, or "
        "pass a longer timeout"
    )
    code = grpc.StatusCode.DEADLINE_EXCEEDED
    return CallFailed(code, why, begun=False, unreachable=True)


def cancelled() -> CallFailed:
    """The failure of a call that its caller has cancelled."""
    return CallFailed(grpc.StatusCode.CANCELLED, CANCELLED_HERE)


def closed() -> CallFailed:
    """The failure of a call whose channel was closed."""
    return CallFailed(grpc.StatusCode.CANCELLED, CLOSED_HERE)


def check_size(request: Request, most: int) -> None:
    """
    Raises:
        CallFailed: a message is larger than the user allows. The limit may be -1 for none.
    """
    if isinstance(request, bytes | bytearray | memoryview):
        size = len(request)
    else:
        size = sum(map(len, request))
    if size > most >= 0:
        why = f"CLIENT: Sent message larger than max ({size} vs. {most})"
        raise CallFailed(grpc.StatusCode.RESOURCE_EXHAUSTED, why, begun=False)


class Reply(NamedTuple):
    """What a call with one reply brought."""

    message: Message
    trailing: Metadata


class CallOptions(NamedTuple):
    """How a call is made.

    Attributes:
        timeout: in seconds; None for no limit. It covers connecting and repeats, and the server is
            told.
        metadata: what is sent with it.
        repeat: whether it is sent again, after a pause, if the server cannot be reached, is
            UNAVAILABLE, or drops it.
    """

    timeout: float | None = None
    metadata: Metadata = ()
    repeat: bool = False

    def deadline(self) -> float | None:
        """When the time of a call that begins now is up, on Python's monotonic clock."""
        return None if self.timeout is None else time.monotonic() + self.timeout


PLAIN: Final = CallOptions()


class Call(Protocol):
    """A call that was started. Thread-safe."""

    def result(self, timeout: float | None = None) -> Reply:
        """The reply; waits for it.

        Raises:
            CallFailed: the call failed, or was cancelled.
            TimeoutError: the call has not ended after `timeout` seconds.
        """

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What `result` raises, `TimeoutError` aside, which this raises, too."""

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""

    def cancel(self) -> bool:
        """Cancels the call, also on the server; False if it has ended."""

    def add_done_callback(self, callback: Callable[[Call], object]) -> None:
        """Calls `callback` when the call has ended, at once if it has. It runs on a thread that
        reads replies, and should return soon."""


class MessageStream(Protocol):
    """A call with many messages. One thread reads, and one writes; any thread cancels."""

    @property
    def trailing(self) -> Metadata:
        """The metadata at the stream's end."""

    def write(self, message: Request) -> None:
        """Sends a message. Does not wait: what the server's windows hold back is sent later. Does
        nothing if the stream has ended; `read` tells why."""

    def send(self, message: Request) -> bool:
        """As `write`, and waits until the server's windows hold nothing back. Returns False if the
        stream has ended."""

    def end(self) -> None:
        """Says that no message follows."""

    def read(self, timeout: float | None = None) -> Message | None:
        """The next message; waits for it. None at the end of a stream that ended well.

        Args:
            timeout: the stream is ended if there is no message after so many seconds.

        Raises:
            CallFailed: the stream failed, was cancelled, or its time is up.
        """

    def cancel(self) -> None:
        """Ends the stream at once. Idempotent."""


class Channel(Protocol):
    """The calls to one server, for threads. Thread-safe.

    It connects with the first call, and again whenever that is needed. A call that the server
    surely did not begin is sent again at once. After a fork, the child's calls use a connection of
    its own.
    """

    @property
    def state(self) -> grpc.ChannelConnectivity:
        """Whether there is a connection, as far as is known."""

    def unary(self, method: str, request: Request, options: CallOptions = PLAIN) -> Reply:
        """Sends one message and waits for the one reply.

        Args:
            method: its path, as ``/package.Service/Method``.

        Raises:
            CallFailed: the call failed.
            ValueError: the metadata cannot be sent.
        """

    def start(self, method: str, request: Request, options: CallOptions = PLAIN) -> Call:
        """Sends one message and does not wait. The arguments are those of `unary`."""

    def stream(
        self, method: str, options: CallOptions = PLAIN, ended: Ended | None = None
    ) -> MessageStream:
        """Begins a call with many messages, of one side or of both.

        Args:
            ended: is told the status when the stream has ended, in whatever way.

        Raises:
            CallFailed: the server cannot be reached.
        """

    def close(self) -> None:
        """Cancels what is in flight, and closes the connections. It waits for no server, and ten
        seconds at most for callbacks that are running. A connection that is being made is given
        up within a quarter of a second. Idempotent."""


class AsyncStream(Protocol):
    """A call with many messages, on its event loop."""

    @property
    def trailing(self) -> Metadata:
        """The metadata at the stream's end."""

    async def send(self, message: Request) -> bool:
        """As `MessageStream.send`."""

    def end(self) -> None:
        """Says that no message follows."""

    async def read(self) -> Message | None:
        """As `MessageStream.read`."""

    def cancel(self) -> None:
        """Ends the stream at once. Idempotent."""


class AsyncChannel(Protocol):
    """The calls to one server, for asyncio: as `Channel`, with a connection for each event loop
    that it is used on."""

    @property
    def state(self) -> grpc.ChannelConnectivity:
        """As `Channel.state`, of the running loop's connection."""

    async def unary(self, method: str, request: Request, options: CallOptions = PLAIN) -> Reply:
        """As `Channel.unary`. If the task is cancelled, so is the call."""

    async def stream(
        self, method: str, options: CallOptions = PLAIN, ended: Ended | None = None
    ) -> AsyncStream:
        """As `Channel.stream`."""

    async def close(self) -> None:
        """As `Channel.close`."""
