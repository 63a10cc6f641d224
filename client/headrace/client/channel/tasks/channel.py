"""The channel of the asyncio client."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import grpc

from headrace.client.channel import bounds
from headrace.client.channel.answers import Answer, StreamAnswer, unpacked
from headrace.client.channel.channel import (
    PLAIN,
    AsyncStream,
    CallFailed,
    CallOptions,
    Ended,
    Message,
    Reply,
    Request,
    cancelled,
    check_size,
    closed,
    late,
    unconnected,
)
from headrace.client.channel.cipher import Cipher
from headrace.client.channel.connecting import Dialler, Name, Tls
from headrace.client.channel.connecting.waits import run_on_loop
from headrace.client.channel.opening import opened
from headrace.client.channel.repeats import Repeating, Repeats
from headrace.client.channel.requests import Blocks
from headrace.client.channel.tasks.connection import LoopConnection
from headrace.client.forks import tell_of_forks
from headrace.http2.messages import CompressedMessage

_new: Final = tuple.__new__  # makes a NamedTuple without a call of Python code
_UNPACKED_HERE_BYTES: Final = 1024
"""A compressed message of at most this size is unpacked on the loop; larger ones on a thread."""


class LoopChannel:
    """Implements `AsyncChannel`. It has no thread. The arguments are those of `SocketChannel`."""

    def __init__(
        self,
        name: Name,
        *,
        tls: Tls | None = None,
        authority: str = "",
        max_message_bytes: int,
    ) -> None:
        self._name = name
        self._tls = tls
        scheme = "http" if tls is None else "https"
        self._blocks = Blocks(authority or name.authority, scheme, bounds.USER_AGENT)
        self._max_message_bytes = max_message_bytes
        self._limits = bounds.limits(max_message_bytes)
        self._repeats = Repeats()
        self._loops: dict[asyncio.AbstractEventLoop, _OnLoop] = {}
        self._closed = False
        tell_of_forks(self)

    def inherit(self) -> None:
        """Leaves the connections to the process that this one was forked from."""
        for here in self._loops.values():
            for connection in here.connections:
                connection.abandon()
        self._loops = {}
        self._repeats.inherit()

    @property
    def state(self) -> grpc.ChannelConnectivity:
        if self._closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        here = self._loops.get(asyncio.get_running_loop())
        return grpc.ChannelConnectivity.IDLE if here is None else here.state

    # -- calls --

    async def unary(self, method: str, request: Request, options: CallOptions = PLAIN) -> Reply:
        check_size(request, self._max_message_bytes)
        if options.timeout is not None and options.timeout <= 0:
            raise late()
        deadline = options.deadline()
        call = method, request, options, deadline
        try:
            return await self._attempt_unary(*call)
        except CallFailed as failure:
            attempt = partial(self._attempt_unary, *call)
            repeating = Repeating(self._repeats, deadline, repeat=options.repeat)
            return await repeating.run_on_loop(attempt, failure)

    async def _attempt_unary(
        self, method: str, request: Request, options: CallOptions, deadline: float | None
    ) -> Reply:
        _, metadata, repeat = options
        here = self._loops.get(asyncio.get_running_loop())
        connection = None if here is None else here.current
        if connection is None or not connection.may_take(repeat=repeat):
            connection = await self._connection(deadline, repeat=repeat)
        block = self._blocks.block(method, deadline, metadata)
        call = _Call(connection, block, request, deadline)
        await call.over()
        if call.failure is not None:
            raise call.failure
        if repeat:
            self._repeats.deposit()
        message: Any = call.message
        if type(message) is CompressedMessage:
            message = await _unpacked(message)
        return _new(Reply, (message, call.trailing))

    async def stream(
        self, method: str, options: CallOptions = PLAIN, ended: Ended | None = None
    ) -> AsyncStream:
        deadline = options.deadline()
        connection = await self._connection(deadline, repeat=False)
        block = self._blocks.block(method, deadline, options.metadata)
        return LoopStream(connection, block, deadline, self._max_message_bytes, ended)

    async def close(self) -> None:
        self._closed = True
        here = asyncio.get_running_loop()
        for loop, on_loop in list(self._loops.items()):
            if loop is here or loop.is_closed():
                on_loop.close()
            else:
                with suppress(RuntimeError):  # it was closed meanwhile
                    loop.call_soon_threadsafe(on_loop.close)
        self._loops.clear()

    def __del__(self) -> None:
        for loop, on_loop in list(getattr(self, "_loops", {}).items()):
            if loop.is_closed():
                on_loop.close()
            else:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(on_loop.close)

    # -- the connection --

    async def _connection(self, deadline: float | None, *, repeat: bool) -> LoopConnection:
        """A connection of the running loop that takes a call.

        Raises:
            CallFailed: there is none in time.
        """
        if self._closed:
            raise closed()
        loop = asyncio.get_running_loop()
        here = self._loops.get(loop)
        if here is None:
            for other in [each for each in self._loops if each.is_closed()]:
                self._loops.pop(other).close()
            here = self._loops[loop] = _OnLoop(self._name, partial(self._opened, loop))
        return await here.connection(deadline, repeat=repeat)

    async def _opened(self, loop: asyncio.AbstractEventLoop, until: float) -> LoopConnection:
        def make(connected: socket.socket, cipher: Cipher | None) -> LoopConnection:
            return LoopConnection(connected, cipher, self._limits, loop)

        dialler = Dialler(self._name, self._tls)
        connection = await run_on_loop(opened(dialler, until, make))
        connection.share()
        return connection


class _OnLoop:
    """The connections of one event loop.

    Attributes:
        current: takes new calls.
    """

    def __init__(self, name: Name, opened: Callable[[float], Any]) -> None:
        self._name = name
        self.current: LoopConnection | None = None
        self._opened = opened
        self._leaving: list[LoopConnection] = []
        self._attempt: asyncio.Task[LoopConnection] | None = None
        self._failed = False

    @property
    def connections(self) -> list[LoopConnection]:
        return [*([] if self.current is None else [self.current]), *self._leaving]

    @property
    def state(self) -> grpc.ChannelConnectivity:
        if self.current is not None and self.current.is_open:
            return grpc.ChannelConnectivity.READY
        if self._attempt is not None:
            return grpc.ChannelConnectivity.CONNECTING
        if self._failed:
            return grpc.ChannelConnectivity.TRANSIENT_FAILURE
        return grpc.ChannelConnectivity.IDLE

    async def connection(self, deadline: float | None, *, repeat: bool) -> LoopConnection:
        """Connects, or waits until somebody else has. Whoever waits no longer does not end it."""
        while True:
            if self.current is not None and self.current.may_take(repeat=repeat):
                return self.current
            if self.current is not None:
                self._leaving = [
                    connection for connection in self._leaving if connection.lost is None
                ]
                self._leaving.append(self.current)
                self.current = None
            if self._attempt is None:
                self._attempt = asyncio.ensure_future(self._connect())
                self._attempt.add_done_callback(_retrieve)
            left = None if deadline is None else deadline - time.monotonic()
            attempt = self._attempt
            done, _ = await asyncio.wait({attempt}, timeout=left)
            if not done:
                raise unconnected(self._name)
            if attempt.cancelled():
                raise closed()
            attempt.result()

    async def _connect(self) -> LoopConnection:
        self._failed = True
        try:
            self.current = await self._opened(time.monotonic() + bounds.CONNECT_SECONDS)
            self._failed = False
            return self.current
        finally:
            self._attempt = None

    def close(self) -> None:
        if self._attempt is not None and not self._attempt.get_loop().is_closed():
            self._attempt.cancel()
        for connection in self.connections:
            connection.close()


class _Call(Answer[LoopConnection]):
    """A call that a task waits for."""

    __slots__ = ("_over",)

    def __init__(
        self, connection: LoopConnection, block: bytes, request: Request, due: float | None
    ) -> None:
        super().__init__(connection, block, request, due)
        self._over = connection.loop.create_future()
        connection.begin(self)

    async def over(self) -> None:
        """Waits until it is over, or its time is."""
        try:
            await self._over
        except asyncio.CancelledError:
            self.connection.give_up(self, cancelled())
            raise

    def told(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


class LoopStream(StreamAnswer[LoopConnection]):
    """Implements `AsyncStream`."""

    __slots__ = ("_max_message_bytes", "_reader", "_tell", "_writer")

    def __init__(
        self,
        connection: LoopConnection,
        block: bytes,
        due: float | None,
        max_message_bytes: int,
        ended: Ended | None,
    ) -> None:
        super().__init__(connection, block, due)
        self._tell = ended
        self._max_message_bytes = max_message_bytes
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        connection.begin(self)

    def told(self) -> None:
        _wake(self._reader)
        if self.is_over:
            _wake(self._writer)
            if self._tell is not None:
                self._tell(self.code)

    def sent(self) -> None:
        _wake(self._writer)

    async def send(self, message: Request) -> bool:
        try:
            check_size(message, self._max_message_bytes)
        except CallFailed as failure:
            self.connection.give_up(self, failure)
        if not self.connection.say(self, message):
            self._writer = self.connection.loop.create_future()
            await self._writer
        return not self.is_over

    def end(self) -> None:
        self.connection.finish(self)

    async def read(self) -> Message | None:
        connection = self.connection
        while True:
            message = connection.next_message(self)
            if message is not None:
                if type(message) is CompressedMessage:
                    return await _unpacked(message)
                return message  # type: ignore[return-value]
            if self.is_over:
                if self.failure is not None:
                    raise self.failure
                return None
            self._reader = connection.loop.create_future()
            await self._reader

    def cancel(self) -> None:
        self.connection.give_up(self, cancelled())


def _retrieve(attempt: asyncio.Task[LoopConnection]) -> None:
    """Has asyncio not complain if nobody waits for an attempt any more."""
    if not attempt.cancelled():
        attempt.exception()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


async def _unpacked(message: CompressedMessage) -> Message:
    """A message without its compression. The loop does not wait for a large one.

    Raises:
        CallFailed: it is too large, or cannot be unpacked.
    """
    if len(message) <= _UNPACKED_HERE_BYTES:
        found: Message = unpacked(message)
    else:
        found = await asyncio.to_thread(unpacked, message)
    return found
