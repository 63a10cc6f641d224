"""The channel of the synchronous client."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from concurrent import futures
from contextlib import suppress
from functools import partial
from typing import Final

import grpc

from headrace.client.channel import bounds
from headrace.client.channel.answers import Answer, StreamAnswer, unpacked
from headrace.client.channel.channel import (
    CLOSED_HERE,
    Call,
    CallFailed,
    Message,
    Metadata,
    Reply,
    Request,
    Stream,
    cancelled,
    check_size,
    late,
)
from headrace.client.channel.cipher import Cipher
from headrace.client.channel.connecting import Dialler, Name, Tls
from headrace.client.channel.connecting.waits import run
from headrace.client.channel.opening import opened
from headrace.client.channel.repeats import Attempts, Repeats
from headrace.client.channel.requests import Blocks
from headrace.client.channel.threads.attendant import Helper
from headrace.client.channel.threads.connection import SharedConnection, Waiter
from headrace.client.forks import tell_of_forks

_JOIN_SECONDS: Final = 10.0


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
        self._dialler = Dialler(name, tls)
        scheme = "http" if tls is None else "https"
        self._blocks = Blocks(authority or name.authority, scheme, bounds.USER_AGENT)
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

    def unary(
        self,
        method: str,
        request: Request,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
        repeat: bool = False,
    ) -> Reply:
        check_size(request, self.max_message_bytes)
        if timeout is not None and timeout <= 0:
            raise late()
        deadline = None if timeout is None else time.monotonic() + timeout
        attempts: Attempts | None = None
        while True:
            failure: CallFailed | None
            try:
                connection = self.connection(deadline, repeat=repeat)
                block = self._blocks.block(method, _left(deadline), metadata)
                call = _UnaryCall(connection, Answer(block, request))
                try:
                    if not connection.begin(call):
                        continue
                    if not connection.wait(call, deadline):
                        connection.give_up(call, late())
                except BaseException:  # an interrupt
                    connection.give_up(call, cancelled())
                    raise
                answer = call.answer
                failure = answer.failure
                if failure is None:
                    message = unpacked(answer.message)
                    if repeat:
                        self.repeats.deposit()
                    return Reply(message, answer.trailing)
            except CallFailed as error:
                failure = error
            if attempts is None:
                attempts = Attempts(self.repeats, repeat=repeat)
            pause = attempts.pause(failure)
            if pause is None or self._closed:
                raise failure
            if deadline is not None and time.monotonic() + pause >= deadline:
                raise failure
            if pause:
                time.sleep(pause)

    def start(
        self,
        method: str,
        request: Request,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
        repeat: bool = False,
    ) -> Call:
        call = StartedCall(self, method, request, timeout, metadata, repeat=repeat)
        try:
            check_size(request, self.max_message_bytes)
        except CallFailed as failure:
            call._settle(failure)
            return call
        self.helper.add(call)
        self.launch(call)
        return call

    def stream(
        self, method: str, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> Stream:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            connection = self.connection(deadline, repeat=False)
            block = self._blocks.block(method, _left(deadline), metadata)
            stream = SocketStream(connection, StreamAnswer(block), deadline, self)
            if connection.begin(stream):
                return stream

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = [self._connection, *self._leaving]
            self._connection, self._leaving = None, []
            starting, self._starting = self._starting, deque()
        for connection in connections:
            if connection is not None:
                connection.close()
        for call in starting:
            call.failed(CallFailed(grpc.StatusCode.CANCELLED, CLOSED_HERE))
        self.helper.stop()
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
        """A connection that takes a call. Connects, or waits for a thread that does.

        Raises:
            CallFailed: there is none in time.
        """
        while True:
            connection = self._connection
            if connection is not None and connection.may_take(repeat=repeat):
                return connection
            if deadline is not None and time.monotonic() >= deadline:
                raise late()
            with self._lock:
                if self._closed:
                    raise CallFailed(grpc.StatusCode.CANCELLED, CLOSED_HERE, begun=True)
                if self._connection is not connection:
                    continue
                if connection is not None:
                    self._forget(connection)
                attempt, mine = self._attempt, self._attempt is None
                if attempt is None:
                    attempt = self._attempt = _Attempt()
            if mine:
                self._make(attempt, deadline)
            else:
                attempt.over.wait(None if deadline is None else deadline - time.monotonic())
            if attempt.failure is not None and (mine or not attempt.late):
                raise attempt.failure

    def _forget(self, connection: SharedConnection) -> None:
        """Takes no new calls on a connection that does not take them, with the lock held."""
        self._connection = None
        self._leaving = [each for each in self._leaving if each.has_calls]
        if connection.has_calls:
            self._leaving.append(connection)

    def _make(self, attempt: _Attempt, deadline: float | None) -> None:
        """Makes the connection that an attempt is about."""
        now = time.monotonic()
        until = now + bounds.CONNECT_SECONDS
        attempt.late = deadline is not None and deadline < until
        connection: SharedConnection | None = None
        try:
            limit = until if deadline is None else min(deadline, until)
            connection = run(opened(self._dialler, limit, self._made))
            connection.share()
        except CallFailed as failure:
            attempt.failure = failure
            attempt.late = attempt.late and deadline is not None and time.monotonic() >= deadline
        finally:
            with self._lock:
                closed = self._closed or self._attempt is not attempt
                self._attempt = None
                self._failed = connection is None
                if not closed:
                    self._connection = connection
            if closed and connection is not None:
                connection.close()
            attempt.over.set()

    def _made(self, connected: socket.socket, cipher: Cipher | None) -> SharedConnection:
        return SharedConnection(connected, cipher, self._limits, self.helper)

    # -- started calls --

    def launch(self, call: StartedCall) -> None:
        """Sends a started call. One thread connects for all that have no connection."""
        connection = self._connection
        if connection is not None and connection.may_take(repeat=True) and call.send(connection):
            return
        with self._lock:
            if self._closed:
                closed = True
            else:
                closed = False
                self._starting.append(call)
                first = len(self._starting) == 1
        if closed:
            call.failed(CallFailed(grpc.StatusCode.CANCELLED, CLOSED_HERE))
        elif first:
            threading.Thread(target=self._connect_for_started, daemon=True).start()

    def _connect_for_started(self) -> None:
        failure: CallFailed | None = None
        try:
            self.connection(None, repeat=True)
        except CallFailed as error:
            failure = error
        with self._lock:
            starting, self._starting = self._starting, deque()
        for call in starting:
            if failure is None:
                self.launch(call)
            else:
                call.failed(failure)

    def block(self, method: str, timeout: float | None, metadata: Metadata) -> bytes:
        """The header block of a call."""
        return self._blocks.block(method, timeout, metadata)


class _Attempt:
    """An attempt to connect, which several threads may wait for."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.failure: CallFailed | None = None
        self.late = False  # it failed because the time of the call was up that made it


class _UnaryCall(Waiter):
    """A call that a thread waits for."""

    __slots__ = ("_connection", "answer")

    def __init__(self, connection: SharedConnection, answer: Answer) -> None:
        super().__init__()
        self._connection = connection
        self.answer = answer

    def told(self) -> None:
        if self.answer.is_over:
            self._connection.wake(self)

    def sent(self) -> None:
        """A thread that waits for the reply does not ask for that."""


class StartedCall:
    """Implements `Call`. Thread-safe: `concurrent.futures` keeps the outcome.

    Attributes:
        due: when its time is up, or when it is sent again.
    """

    def __init__(
        self,
        channel: SocketChannel,
        method: str,
        request: Request,
        timeout: float | None,
        metadata: Metadata,
        *,
        repeat: bool,
    ) -> None:
        now = time.monotonic()
        self.due = float("inf") if timeout is None else now + timeout
        self._channel = channel
        self._method = method
        self._request: Request = request
        self._metadata = metadata
        self._deadline = self.due
        self._attempts = Attempts(channel.repeats, repeat=repeat)
        self._connection: SharedConnection | None = None
        self._outcome: futures.Future[Reply] = futures.Future()
        self._unwanted: CallFailed | None = None
        self._pauses = False
        self.answer = Answer(b"", request)

    # -- what callers see --

    def result(self, timeout: float | None = None) -> Reply:
        return self._outcome.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._outcome.exception(timeout)

    def done(self) -> bool:
        return self._outcome.done()

    def cancel(self) -> bool:
        return self._end(cancelled())

    def add_done_callback(self, callback: object) -> None:
        self._outcome.add_done_callback(lambda _: callback(self))  # type: ignore[operator]

    # -- inside --

    def _end(self, failure: CallFailed) -> bool:
        """Ends the call from this side. Returns False if it has ended."""
        if self._outcome.done():
            return False
        self._unwanted = failure
        connection = self._connection
        if connection is None or not connection.give_up(self, failure):
            self.failed(failure)  # between two attempts, or an attempt has just ended
        return True

    def on_due(self) -> None:
        """Its pause is over, or its time."""
        if self._pauses and time.monotonic() < self._deadline:
            self._pauses = False
            self.due = self._deadline
            self._channel.launch(self)
        else:
            self.due = float("inf")
            self._end(late())

    def send(self, connection: SharedConnection) -> bool:
        """Sends it. Returns False if the connection takes no calls."""
        if self._outcome.done():
            return True
        left = None if self._deadline == float("inf") else self._deadline - time.monotonic()
        if left is not None and left <= 0:
            self.failed(late())
            return True
        try:
            block = self._channel.block(self._method, left, self._metadata)
        except ValueError as error:
            self._settle(error)
            return True
        self.answer = Answer(block, self._request)
        self._connection = connection
        if not connection.start(self):
            self._connection = None
            return False
        if self._unwanted is not None:
            connection.give_up(self, self._unwanted)
        return True

    def told(self) -> None:
        connection = self._connection
        if self.answer.is_over and connection is not None:
            connection.unattended -= 1
            connection.later(partial(self._answered, self.answer))

    def sent(self) -> None:
        """Nobody asks for that."""

    def _answered(self, answer: Answer) -> None:
        """The attempt has ended."""
        answer.unpack()
        if answer.failure is not None:
            self.failed(answer.failure)
            return
        assert answer.message is not None
        self._settle(Reply(answer.message, answer.trailing))  # type: ignore[arg-type]

    def failed(self, failure: CallFailed) -> None:
        """An attempt failed. It is sent again if it may be."""
        self._connection = None
        pause = None if self._unwanted is not None else self._attempts.pause(failure)
        now = time.monotonic()
        if pause is None or now + pause >= self._deadline:
            self._settle(failure)
        elif pause:
            self._pauses = True
            self.due = now + pause
            self._channel.helper.add(self)
        else:
            self._channel.launch(self)

    def _settle(self, outcome: Reply | BaseException) -> None:
        self._channel.helper.remove(self)
        self._request = b""
        with suppress(futures.InvalidStateError):  # both ends have ended it
            if isinstance(outcome, Reply):
                self._outcome.set_result(outcome)
            else:
                self._outcome.set_exception(outcome)


class SocketStream:
    """Implements `Stream`. The connection's lock guards what has come."""

    def __init__(
        self,
        connection: SharedConnection,
        answer: StreamAnswer,
        deadline: float | None,
        channel: SocketChannel,
    ) -> None:
        self.answer = answer
        self._connection = connection
        self._deadline = deadline
        self._channel = channel  # which would close the connection
        self._incoming = Waiter()
        self._outgoing = Waiter()

    @property
    def trailing(self) -> Metadata:
        return self.answer.trailing

    def told(self) -> None:
        self._connection.wake(self._incoming)
        if self.answer.is_over:
            self._connection.wake(self._outgoing)

    def sent(self) -> None:
        self._connection.wake(self._outgoing)

    def write(self, message: Request) -> None:
        try:
            check_size(message, self._channel.max_message_bytes)
        except CallFailed as failure:
            self._connection.give_up(self, failure)
            return
        self._connection.say(self.answer, message)

    def drain(self) -> None:
        self._connection.holds_back(self.answer, self._outgoing)
        self._wait(self._outgoing)

    def end(self) -> None:
        self._connection.finish(self.answer)

    def read(self) -> Message | None:
        answer = self.answer
        while True:
            message, is_over = self._connection.next_message(answer, self._incoming)
            if message is not None:
                return unpacked(message)  # type: ignore[no-any-return]
            if is_over:
                if answer.failure is not None:
                    raise answer.failure
                return None
            self._wait(self._incoming)

    def cancel(self) -> None:
        self._connection.give_up(self, cancelled())

    def _wait(self, waiter: Waiter) -> None:
        try:
            if not self._connection.wait(waiter, self._deadline):
                self._connection.give_up(self, late())
        except BaseException:  # an interrupt
            self.cancel()
            raise


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 1e-6)
