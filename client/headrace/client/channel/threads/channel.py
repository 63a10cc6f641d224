"""The channel of the synchronous client."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final

import grpc

from headrace.client.channel import bounds
from headrace.client.channel.answers import Answer, StreamAnswer, unpacked
from headrace.client.channel.channel import (
    PLAIN,
    Call,
    CallFailed,
    CallOptions,
    Ended,
    Message,
    MessageStream,
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
from headrace.client.channel.connecting.waits import GivenUp, run
from headrace.client.channel.opening import opened
from headrace.client.channel.repeats import Repeating, Repeats
from headrace.client.channel.requests import Blocks
from headrace.client.channel.threads.attendant import Helper
from headrace.client.channel.threads.connection import SharedConnection, Waiter
from headrace.client.channel.threads.started import StartedCall
from headrace.client.forks import tell_of_forks
from headrace.http2.messages import CompressedMessage

_JOIN_SECONDS: Final = 10.0
_new: Final = tuple.__new__  # makes a NamedTuple without a call of Python code


class SocketChannel:
    """Implements `Channel`. It has no thread while callers wait for replies, because they read
    themselves; see `SharedConnection`.

    `_lock` guards which connection new calls take, and the attempt to get one.

    Args:
        name: the server's.
        tls: how the client knows it; None for plain text.
        authority: the name that calls are for; empty for the server's own.
        max_message_bytes: the largest message that is sent or received.
    """

    def __init__(
        self,
        name: Name,
        *,
        tls: Tls | None = None,
        authority: str = "",
        max_message_bytes: int,
    ) -> None:
        self._name = name
        self._dialler = Dialler(name, tls)
        scheme = "http" if tls is None else "https"
        self.blocks = Blocks(authority or name.authority, scheme, bounds.USER_AGENT)
        self.max_message_bytes = max_message_bytes
        self._limits = bounds.limits(max_message_bytes)
        self._lock = threading.Lock()
        self._connection: SharedConnection | None = None
        self._leaving: list[SharedConnection] = []  # take no calls, and may still have some
        self._attempt: _Attempt | None = None
        self._failed = False
        self._closed = False
        self._starting: deque[StartedCall] = deque()  # wait for a connection
        self.helper = Helper()
        self.repeats = Repeats()
        tell_of_forks(self)

    def inherit(self) -> None:
        """Leaves the connections to the process that this one was forked from."""
        self._lock = threading.Lock()
        for connection in (self._connection, *self._leaving):
            if connection is not None:
                connection.abandon()
        self._connection, self._leaving, self._attempt = None, [], None
        self._starting = deque()
        self.helper.inherit()
        self.repeats.inherit()

    @property
    def state(self) -> grpc.ChannelConnectivity:
        connection = self._connection
        if self._closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if connection is not None and connection.is_open:
            return grpc.ChannelConnectivity.READY
        if self._attempt is not None:
            return grpc.ChannelConnectivity.CONNECTING
        if self._failed:
            return grpc.ChannelConnectivity.TRANSIENT_FAILURE
        return grpc.ChannelConnectivity.IDLE

    # -- calls --

    def unary(self, method: str, request: Request, options: CallOptions = PLAIN) -> Reply:
        check_size(request, self.max_message_bytes)
        if options.timeout is not None and options.timeout <= 0:
            raise late()
        deadline = options.deadline()
        call = method, request, options, deadline
        try:
            return self._attempt_unary(*call)
        except CallFailed as failure:
            attempt = partial(self._attempt_unary, *call)
            return Repeating(self.repeats, deadline, repeat=options.repeat).run(attempt, failure)

    def _attempt_unary(
        self, method: str, request: Request, options: CallOptions, deadline: float | None
    ) -> Reply:
        _, metadata, repeat = options
        while True:
            connection = self._connection
            if connection is None or not connection.may_take(repeat=repeat):
                connection = self.connection(deadline, repeat=repeat)
            block = self.blocks.block(method, deadline, metadata)
            call = UnaryAnswer(connection, block, request)
            try:
                if not connection.begin(call):
                    continue
                if not connection.wait(call, deadline):
                    connection.give_up(call, late())
            except BaseException:  # an interrupt
                connection.give_up(call, cancelled())
                raise
            if call.failure is not None:
                raise call.failure
            if repeat:
                self.repeats.deposit()
            message = call.message
            if type(message) is CompressedMessage:
                message = unpacked(message)
            return _new(Reply, (message, call.trailing))

    def start(self, method: str, request: Request, options: CallOptions = PLAIN) -> Call:
        call = StartedCall(self, method, request, options)
        try:
            check_size(request, self.max_message_bytes)
        except CallFailed as failure:
            call._settle(failure)
            return call
        self.helper.add(call)
        self.launch(call)
        return call

    def stream(
        self, method: str, options: CallOptions = PLAIN, ended: Ended | None = None
    ) -> MessageStream:
        deadline = options.deadline()
        while True:
            connection = self.connection(deadline, repeat=False)
            block = self.blocks.block(method, deadline, options.metadata)
            stream = SocketStream(self, connection, block, deadline, ended)
            if connection.begin(stream):
                return stream

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = [self._connection, *self._leaving]
            self._connection, self._leaving = None, []
            self._starting.clear()
            if self._attempt is not None:
                self._attempt.failure = closed()
                self._attempt.over.set()
        for connection in connections:
            if connection is not None:
                connection.close()
        for call in self.helper.stop():  # between two attempts, or before the first
            call.end(closed())
        self.helper.join(_JOIN_SECONDS)

    def __del__(self) -> None:
        if hasattr(self, "helper"):
            with suppress(Exception):
                self.helper.stop()
                for connection in (self._connection, *self._leaving):
                    if connection is not None:
                        connection.close()

    # -- the connection --

    def connection(self, deadline: float | None, *, repeat: bool) -> SharedConnection:
        """A connection that takes a call; waits until there is one.

        Raises:
            CallFailed: there is none in time.
        """
        while True:
            connection = self._connection
            if connection is not None and connection.may_take(repeat=repeat):
                return connection
            with self._lock:
                attempt = self._connecting(connection)
            if attempt is None:
                continue
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not attempt.over.wait(left):
                raise unconnected(self._name)
            if attempt.failure is not None:
                raise attempt.failure

    def _connecting(self, unusable: SharedConnection | None) -> _Attempt | None:
        """The attempt to connect, with the lock held. It begins if there is none. None if another
        thread has connected meanwhile.

        Raises:
            CallFailed: the channel is closed.
        """
        if self._closed:
            raise closed()
        if self._connection is not unusable:
            return None
        if unusable is not None:
            self._connection = None
            self._leaving = [connection for connection in self._leaving if connection.has_calls]
            if unusable.has_calls:
                self._leaving.append(unusable)
        if self._attempt is None:
            self._attempt = _Attempt()
            # No caller's time or interrupt ends what others wait for.
            threading.Thread(target=self._connect, args=(self._attempt,), daemon=True).start()
        return self._attempt

    def _connect(self, attempt: _Attempt) -> None:
        """Connects, on a thread that ends with that."""
        connection: SharedConnection | None = None
        try:
            until = time.monotonic() + bounds.CONNECT_SECONDS
            steps = opened(self._dialler, until, self._made)
            connection = run(steps, lambda: not attempt.over.is_set())
            connection.share()
        except CallFailed as failure:
            attempt.failure = failure
        except GivenUp:
            attempt.failure = closed()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            attempt.failure = CallFailed(grpc.StatusCode.INTERNAL, repr(error), begun=False)
        with self._lock:
            is_wanted = self._attempt is attempt and not self._closed
            if self._attempt is attempt:
                self._attempt = None
            self._failed = connection is None
            if is_wanted:
                self._connection = connection
            starting, self._starting = self._starting, deque()
        attempt.over.set()
        if not is_wanted and connection is not None:
            connection.close()
        for call in starting:
            if attempt.failure is None:
                self.launch(call)
            else:
                call.failed(attempt.failure)

    def _made(self, connected: socket.socket, cipher: Cipher | None) -> SharedConnection:
        return SharedConnection(connected, cipher, self._limits, self.helper)

    # -- started calls --

    def launch(self, call: StartedCall) -> None:
        """Sends a started call, as soon as there is a connection."""
        while True:
            connection = self._connection
            if connection is not None and connection.may_take(repeat=True):
                if call.send(connection):
                    return
                continue
            try:
                with self._lock:
                    if self._connecting(connection) is not None:
                        self._starting.append(call)
                        return
            except CallFailed as failure:
                call.end(failure)
                return


class _Attempt:
    """An attempt to connect, which threads wait for."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.failure: CallFailed | None = None


class UnaryAnswer(Answer[SharedConnection]):
    """A call that a thread waits for. Implements `Waiting`, too."""

    __slots__ = ()

    def told(self) -> None:
        self.connection.wake(self)


class SocketStream(StreamAnswer[SharedConnection]):
    """Implements `MessageStream`. The connection's lock guards what has come."""

    __slots__ = ("_channel", "_deadline", "_incoming", "_outgoing", "_tell")

    def __init__(
        self,
        channel: SocketChannel,
        connection: SharedConnection,
        block: bytes,
        deadline: float | None,
        ended: Ended | None,
    ) -> None:
        super().__init__(connection, block)
        self._deadline = deadline
        self._channel = channel  # which would close the connection
        self._tell = ended
        self._incoming = Waiter()
        self._outgoing = Waiter()

    def told(self) -> None:
        self.connection.wake(self._incoming)
        if self.is_over:
            self.connection.wake(self._outgoing)
            if self._tell is not None:
                self.connection.later(partial(self._tell, self.code))

    def sent(self) -> None:
        self.connection.wake(self._outgoing)

    def write(self, message: Request) -> None:
        try:
            check_size(message, self._channel.max_message_bytes)
        except CallFailed as failure:
            self.connection.give_up(self, failure)
            return
        self.connection.say(self, message)

    def send(self, message: Request) -> bool:
        self.write(message)
        self.connection.holds_back(self, self._outgoing)
        self._wait(self._outgoing, self._deadline)
        return not self.is_over

    def end(self) -> None:
        self.connection.finish(self)

    def read(self, timeout: float | None = None) -> Message | None:
        deadline = self._deadline
        if timeout is not None:
            due = time.monotonic() + timeout
            deadline = due if deadline is None else min(due, deadline)
        while True:
            message, is_over = self.connection.next_message(self, self._incoming)
            if message is not None:
                return unpacked(message)  # type: ignore[no-any-return]
            if is_over:
                if self.failure is not None:
                    raise self.failure
                return None
            self._wait(self._incoming, deadline)

    def cancel(self) -> None:
        self.connection.give_up(self, cancelled())

    def _wait(self, waiter: Waiter, deadline: float | None) -> None:
        try:
            if not self.connection.wait(waiter, deadline):
                self.connection.give_up(self, late())
        except BaseException:  # an interrupt
            self.cancel()
            raise
