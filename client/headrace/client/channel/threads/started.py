"""Calls that were started, and that nobody need wait for."""

from __future__ import annotations

import time
from concurrent import futures
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.client.channel.answers import Answer
from headrace.client.channel.channel import CallFailed, CallOptions, Reply, Request, cancelled, late
from headrace.client.channel.repeats import Repeating
from headrace.client.channel.threads.connection import SharedConnection, Waiter

if TYPE_CHECKING:
    from headrace.client.channel.threads.channel import SocketChannel


class _Try(Answer[SharedConnection]):
    """One attempt of a started call."""

    __slots__ = ("_call",)

    def __init__(
        self, call: StartedCall, connection: SharedConnection, block: bytes, request: Request
    ) -> None:
        super().__init__(connection, block, request)
        self._call = call

    def told(self) -> None:
        self._call.told(self)


class StartedCall:
    """Implements `Call`. Thread-safe: `concurrent.futures` keeps the outcome.

    Attributes:
        due: when its time is up, or when it is sent again.
    """

    def __init__(
        self, channel: SocketChannel, method: str, request: Request, options: CallOptions
    ) -> None:
        deadline = options.deadline()
        self.due = float("inf") if deadline is None else deadline
        self._channel = channel
        self._method = method
        self._request: Request = request
        self._metadata = options.metadata
        self._deadline = self.due
        self._repeating = Repeating(channel.repeats, self.due, repeat=options.repeat)
        self._connection: SharedConnection | None = None
        self._outcome: futures.Future[Reply] = futures.Future()
        self._unwanted: CallFailed | None = None
        self._pauses = False
        self._waiters: list[Waiter] = []
        self._try: _Try | None = None

    # -- what callers see --

    def result(self, timeout: float | None = None) -> Reply:
        return self._outcome.result(self._read(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._outcome.exception(self._read(timeout))

    def _read(self, timeout: float | None) -> float | None:
        """Waits for the attempt that goes on, and reads if nobody else does. Returns how much time
        is left. What follows an attempt is for whoever ended it."""
        until = None if timeout is None else time.monotonic() + timeout
        connection = self._connection
        if connection is not None and not self._outcome.done():
            waiter = Waiter()
            self._waiters.append(waiter)
            waiter.is_over = self._try is None or self._try.is_over
            limit = self._deadline if until is None else min(until, self._deadline)
            connection.wait(waiter, None if limit == float("inf") else limit)
            self._waiters.remove(waiter)
            if time.monotonic() >= self._deadline:  # the helper may be busy with a callback
                self.end(late())
        return None if until is None else max(until - time.monotonic(), 0.0)

    def done(self) -> bool:
        return self._outcome.done()

    def cancel(self) -> bool:
        return self.end(cancelled())

    def add_done_callback(self, callback: object) -> None:
        self._outcome.add_done_callback(lambda _: callback(self))  # type: ignore[operator]

    # -- inside --

    def end(self, failure: CallFailed) -> bool:
        """Ends the call from this side. Returns False if it has ended."""
        if self._outcome.done():
            return False
        self._unwanted = failure
        connection, attempt = self._connection, self._try
        if connection is None or attempt is None or not connection.give_up(attempt, failure):
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
            self.end(late())

    def send(self, connection: SharedConnection) -> bool:
        """Sends it. Returns False if the connection takes no calls."""
        if self._outcome.done():
            return True
        if self._deadline <= time.monotonic():
            self.failed(late())
            return True
        deadline = None if self._deadline == float("inf") else self._deadline
        try:
            block = self._channel.blocks.block(self._method, deadline, self._metadata)
        except ValueError as error:
            self._settle(error)
            return True
        self._try = attempt = _Try(self, connection, block, self._request)
        self._connection = connection
        if not connection.start(attempt):
            self._connection = None
            return False
        if self._unwanted is not None:
            connection.give_up(attempt, self._unwanted)
        return True

    def told(self, attempt: _Try) -> None:
        """An attempt is over."""
        connection = self._connection
        if connection is not None:
            for waiter in self._waiters:
                connection.wake(waiter)
            connection.unattended -= 1
            connection.later(partial(self._answered, attempt))

    def _answered(self, answer: Answer[Any]) -> None:
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
        unwanted = self._unwanted is not None
        pause = None if unwanted else self._repeating.pause(failure)
        if pause is None:
            self._settle(failure)
        elif pause:
            self._pauses = True
            self.due = time.monotonic() + pause
            self._channel.helper.add(self)
        else:
            self._channel.launch(self)

    def _settle(self, outcome: Reply | BaseException) -> None:
        self._channel.helper.remove(self)
        self._request, self._try = b"", None
        with suppress(futures.InvalidStateError):  # both ends have ended it
            if isinstance(outcome, Reply):
                self._outcome.set_result(outcome)
            else:
                self._outcome.set_exception(outcome)
