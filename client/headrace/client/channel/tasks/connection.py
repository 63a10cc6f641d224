"""One connection of an event loop."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from typing import Any, Final

from headrace.client.channel import bounds
from headrace.client.channel.answers import Answer, StreamAnswer
from headrace.client.channel.channel import CallFailed, Request, closed, late
from headrace.client.channel.cipher import Cipher
from headrace.client.channel.connection import NOW, ChannelConnection
from headrace.http2.limits import ConnectionLimits

_AT_ONCE_BYTES: Final = 1 << 20
"""How much is read before all others on the loop have their turn."""


class LoopConnection(ChannelConnection):
    """One connection. Belongs to its event loop's thread.

    Attributes:
        loop: that loop.
    """

    def __init__(
        self,
        connected: socket.socket,
        cipher: Cipher | None,
        limits: ConnectionLimits,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(connected, cipher, limits)
        self.loop = loop
        self._is_shared = False
        self._flushes = False
        self._stuck = False
        self._crowded = False  # whether several tasks got their replies at the same time
        self._wakes_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def share(self) -> None:
        """Lets the loop wait for the socket. It must have greeted."""
        self._is_shared = True
        self.loop.add_reader(self._socket, self._readable)

    def may_take(self, *, repeat: bool) -> bool:
        """Whether a new call may go out on the connection. The loop has read what came.

        Args:
            repeat: whether the call may be repeated.
        """
        if self.is_open and not self.has_calls:
            idle = bounds.clock() - self._used_at
            if idle > bounds.UNSEEN_SECONDS or not repeat:
                self._readable()  # perhaps the loop has not come to it yet
            if bounds.is_stale(idle, repeat=repeat) and not self.has_calls:
                self._retire()
        return self.is_open

    # -- calls --

    def begin(self, answer: Answer[Any]) -> None:
        """Sends a call, and ends it when its time is up."""
        self._add(answer)
        if answer.due is not None and answer.due < self._wakes_at:
            self._wake_at(answer.due)
        if len(self._wire.streams) == 1 and not self._crowded:
            self.flush()  # nobody else is about to add something
        else:
            self._flush_soon()

    def say(self, answer: StreamAnswer[Any], message: Request) -> bool:
        """Sends a message of a stream. Returns whether nothing of it is held back."""
        self._say(answer, message)
        self._flush_soon()
        stream = answer.stream
        return answer.is_over or (stream is not None and not stream.pending)

    def finish(self, answer: StreamAnswer[Any]) -> None:
        """Says that a stream has no more messages."""
        self._finish(answer)
        self._flush_soon()

    def give_up(self, answer: Answer[Any], failure: CallFailed) -> bool:
        """Ends a call from this side. Returns False if it has ended."""
        given_up = self._give_up(answer, failure)
        self.flush()  # the loop may stop with the task that gave up
        return given_up

    def next_message(self, answer: StreamAnswer[Any]) -> object | None:
        """The next message of a stream; None if none has come."""
        message = self._next_message(answer)
        if self._wire.out:
            self._flush_soon()
        return message

    # -- time --

    def _wake_at(self, due: float) -> None:
        """Has one timer for all calls, because few of them need it: it wakes for the first."""
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = due
        self._timer = self.loop.call_later(max(due - time.monotonic(), 0.0), self._on_time)

    def _on_time(self) -> None:
        self._timer, self._wakes_at = None, math.inf
        now, due = time.monotonic(), math.inf
        calls: list[Any] = [stream.owner for stream in self._wire.streams.values()]
        for call in (*calls, *self._line):
            if call is None or call.due is None:
                continue
            if call.due <= now:
                self.give_up(call, late())
            else:
                due = min(due, call.due)
        if due < self._wakes_at:
            self._wake_at(due)

    # -- the socket --

    def _readable(self) -> None:
        read, calls = 0, len(self._wire.streams)
        while self.lost is None and read < _AT_ONCE_BYTES:
            target, direct = self._target()
            try:
                count = self._socket.recv_into(target, 0, NOW)
            except BlockingIOError:
                break
            except OSError as error:
                self._break(error)
                return
            self._came(count, direct=direct)
            read += count
            if count < len(target):
                break
        self._used_at = bounds.clock()
        self._crowded = calls - len(self._wire.streams) > 1
        if self.lost is None and self._wire.out:
            self.flush()

    def _flush_soon(self) -> None:
        """Sends what waits, together with all that is added in this turn of the loop."""
        if not self._flushes:
            self._flushes = True
            self.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushes = False
        self.flush()

    def flush(self) -> None:
        """Sends what waits, as far as the socket takes it."""
        if self._stuck or self.lost is not None:
            return
        try:
            while self._flush():
                self._send()
        except BlockingIOError:
            self._stuck = self._wire.paused = True
            self.loop.add_writer(self._socket, self._writable)
        except OSError as error:
            self._unsent.clear()
            self._readable()  # perhaps the server said why
            if self.lost is None:
                self._break(error)

    def _writable(self) -> None:
        self._stuck = False
        self.loop.remove_writer(self._socket)
        self._unblock()
        self.flush()

    # -- the end --

    def _ended(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_shared and not self.loop.is_closed():
            self.loop.remove_reader(self._socket)
            if self._stuck:
                self.loop.remove_writer(self._socket)
        super()._ended()

    def close(self) -> None:
        """Ends the connection at once. Idempotent."""
        self._end(closed())
