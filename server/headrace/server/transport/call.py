"""A call as the methods of the services see it, whatever carries it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import grpc

Metadata: TypeAlias = "Sequence[tuple[str, str | bytes]]"

Reply: TypeAlias = "bytes | list[bytes | memoryview]"
"""A serialised message, or the parts of one, to be sent one after the other."""

Take: TypeAlias = "Callable[[Iterator[bytes]], Awaitable[object] | None]"
"""Takes messages that have come, and returns what has to end before it is called again, if anything
has to. It need not take all of them."""


class CallOver(Exception):
    """The caller has left, so that nothing can be written any more."""


class IncomingCall(Protocol):
    """One call. Belongs to the event loop's thread.

    The task that handles a call is cancelled when its caller leaves or its deadline passes.

    Attributes:
        method: the path of the method, ``/package.Service/Method``.
    """

    @property
    def method(self) -> str: ...

    def peer(self) -> str:
        """The other end of the connection: ``ipv4:10.0.0.1:5000``, ``ipv6:%5B::1%5D:5000`` or
        ``unix:USER:PROCESS:NUMBER``."""

    def invocation_metadata(self) -> Metadata:
        """What the caller sent before its messages. Values of keys that end with -bin are bytes."""

    def certificate(self) -> bytes | None:
        """The certificate of the caller's connection, as PEM or DER."""

    def time_remaining(self) -> float | None:
        """The seconds until the caller's deadline, 0 when it has passed; None without one."""

    async def user(self) -> int | None:
        """The id of the caller's user on this machine; None if the caller is elsewhere."""

    def show_credential(self) -> None:
        """Notes that the caller's connection has shown a valid credential."""

    async def read(self) -> bytes | None:
        """The next message; None if the caller sends no more.

        Raises:
            HeadraceError: the message is too large, or cannot be read.
        """

    async def deliver(self, take: Take) -> None:
        """Hands the messages to `take` as they come. Returns when the caller sends no more.

        `take` may be called without a task, in the callback that has read the messages, but in the
        context of this one. What it does not take waits, so that flow control slows the caller.

        Raises:
            As `read` and `take`.
        """

    async def write(self, message: bytes) -> None:
        """Sends a message. Returns when flow control lets the next one follow.

        Raises:
            CallOver: the caller has left.
        """

    def try_write(self, message: bytes) -> bool:
        """Sends a message if nothing holds it back. Returns whether it was sent: if not, `write`
        waits until it is.

        Raises:
            CallOver: the caller has left.
        """

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """What goes with the status, unless `abort` says something else."""

    async def abort(self, code: grpc.StatusCode, message: str, metadata: Metadata) -> NoReturn:
        """Ends the call with a status. Raises something that the handler lets through."""

    def cancel(self) -> None:
        """Cancels the task that handles the call."""

    def when_over(self, callback: Callable[[], object]) -> None:
        """Has `callback` called when the call is over: its status has been sent, or its caller has
        left and its handler has ended."""


class BoundMethod(NamedTuple):
    """A method as a front end calls it.

    Attributes:
        handle: takes a call, and returns the one reply or None.
        is_unary: whether the method takes one message and gives one reply. It may then be handled
            without a task until it has to wait.
        gives_one: whether it gives one reply.
        begins_early: whether a call begins before its message has come, because its caller has to
            show a credential first. Otherwise it takes no slot until then.
    """

    handle: Callable[[Any], Awaitable[Reply | None]]
    is_unary: bool
    gives_one: bool
    begins_early: bool


class Methods(Protocol):
    """The methods of a server."""

    def find(self, path: str) -> BoundMethod | None:
        """The method with this path. None if there is none."""


async def deliver_one_by_one(call: IncomingCall, take: Take) -> None:
    """As `IncomingCall.deliver`, for calls whose messages come to a task."""
    while (message := await call.read()) is not None:
        rest = take(iter((message,)))
        if rest is not None:
            await rest
