"""One connection that many threads share."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from headrace.client.channel import bounds
from headrace.client.channel.answers import Answer, StreamAnswer
from headrace.client.channel.channel import CallFailed, Request, closed
from headrace.client.channel.cipher import Cipher
from headrace.client.channel.connection import NOW, ChannelConnection
from headrace.http2.limits import ConnectionLimits

_TICK_SECONDS: Final = 1.0
_TICK: Final = struct.pack("ll", 1, 0)


class Waiting(Protocol):
    """What a thread waits for. The connection's lock guards it.

    Attributes:
        is_over: whether there is nothing more to wait for.
    """

    is_over: bool


class Waiter:
    """Implements `Waiting` for what is not the end of a call."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class Attendant(Protocol):
    """Reads and writes for a connection while no caller does."""

    def attend(self, connection: SharedConnection) -> None:
        """Looks at the connection soon. Takes no lock of a connection."""


class SharedConnection(ChannelConnection):
    """One connection. Thread-safe.

    `_lock` guards the protocol's state, TLS, and who has which part. Nobody waits for anything with
    the lock held. One thread at a time reads the socket, and one writes it:

    - A caller that waits reads for all, until its own reply has come. Then the next one does.
    - Callers whose replies came together are woken one after the other: all at once, they would
      only wait for each other.
    - A caller that has something to send writes it, with all that others add meanwhile.
    - While no caller waits, the attendant reads for the calls that were started.

    Args:
        attendant: called for calls without a caller that waits.

    Attributes:
        is_read: whether a thread reads it.
        unattended: how many calls were started that nobody waits for.
        stuck: whether there is more to send than the socket takes.
    """

    def __init__(
        self,
        connected: socket.socket,
        cipher: Cipher | None,
        limits: ConnectionLimits,
        attendant: Attendant,
    ) -> None:
        super().__init__(connected, cipher, limits)
        self.is_read = False
        self.unattended = 0
        self.stuck = False
        self._attendant = attendant
        self._lock = threading.Lock()
        # What threads wait for that do not read, and the lock that each wants to take.
        self._followers: dict[Waiting, threading.Lock] = {}
        self._roused: deque[threading.Lock] = deque()  # are released one after the other
        self._rouses = False  # whether one has been released, and its thread is not awake
        self._due: list[Callable[[], object]] = []  # to be done without the lock
        self._is_written = False
        self._patience = 0.0

    def share(self) -> None:
        """Lets threads wait for the socket. It must have greeted."""
        self._socket.setblocking(True)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TICK)
        self._patience = _TICK_SECONDS

    def may_take(self, *, repeat: bool) -> bool:
        """Whether a new call may go out on the connection, as far as can be known at once.

        Args:
            repeat: whether the call may be repeated.
        """
        if not self.is_open or self.is_read:
            return self.is_open
        idle = bounds.clock() - self._used_at
        if repeat and idle <= bounds.UNSEEN_SECONDS:
            return True
        if bounds.is_stale(idle, repeat=repeat) and not self.has_calls:
            with self._lock:
                self._retire()
            return False
        self._look()
        return self.is_open

    def _look(self) -> None:
        """Reads what has come while nobody did: perhaps the server has said goodbye."""
        with self._lock:
            if self.is_read:
                return
            self.is_read = True
        try:
            while self._receive(NOW):
                pass
        finally:
            self._resign()

    # -- calls --

    def begin(self, answer: Answer[Any]) -> bool:
        """Sends a call, whose caller then waits. Returns False if the connection takes no new
        ones."""
        with self._lock:
            if not self.is_open:
                return False
            self._add(answer)
            if self._is_written or self.stuck or not self._flush():
                return True
            self._is_written = True
        self._write()
        return True

    def start(self, answer: Answer[Any]) -> bool:
        """As `begin`, for a call that nobody waits for."""
        with self._lock:
            self.unattended += 1
        if not self.begin(answer):
            with self._lock:
                self.unattended -= 1
            return False
        self._attended()
        self._do_due()
        return True

    def say(self, answer: StreamAnswer[Any], message: Request) -> None:
        """Sends a message of a stream."""
        with self._lock:
            self._say(answer, message)
        self.flush()

    def finish(self, answer: StreamAnswer[Any]) -> None:
        """Says that a stream has no more messages."""
        with self._lock:
            self._finish(answer)
        self.flush()

    def give_up(self, answer: Answer[Any], failure: CallFailed) -> bool:
        """Ends a call from this side. Returns False if it has ended."""
        with self._lock:
            if not self._give_up(answer, failure):
                return False
        self.flush()
        self._do_due()
        return True

    def next_message(self, answer: StreamAnswer[Any], waiter: Waiting) -> tuple[Any, bool]:
        """The next message of a stream, and whether the stream is over. None if none has come;
        `waiter` waits until one has, or the stream is over."""
        with self._lock:
            message = self._next_message(answer)
            waiter.is_over = is_over = answer.is_over
        if self._wire.out:
            self.flush()
        return message, is_over

    def holds_back(self, answer: StreamAnswer[Any], waiter: Waiting) -> None:
        """Has `waiter` wait if something of a stream is held back."""
        with self._lock:
            stream = answer.stream
            waiter.is_over = answer.is_over or (stream is not None and not stream.pending)

    # -- waiting --

    def wait(self, waiter: Waiting, deadline: float | None) -> bool:
        """Waits until `waiter` is over, and reads for all others meanwhile if nobody else does.

        Returns:
            False when time was up first.
        """
        followed = False
        while True:
            with self._lock:
                if followed:
                    self._rouse_next()
                if waiter.is_over or self.lost is not None:
                    if followed:
                        self._promote()  # it may have been this thread's turn to read
                    return True
                lock = threading.Lock() if self.is_read else None
                if lock is None:
                    self.is_read = True
                else:
                    lock.acquire()
                    self._followers[waiter] = lock
            if lock is None:
                in_time = self._lead(waiter, deadline)
            else:
                followed = True
                in_time = self._follow(waiter, lock, deadline)
            if not in_time:
                return waiter.is_over

    def wake(self, waiter: Waiting) -> None:
        """Ends a wait, with the lock held."""
        waiter.is_over = True
        lock = self._followers.pop(waiter, None) if self._followers else None
        if lock is not None:
            self._roused.append(lock)
            if not self._rouses:
                self._rouse_next()

    def _rouse_next(self) -> None:
        """Wakes the next thread whose wait is over, with the lock held. It calls this itself when
        it is awake."""
        self._rouses = bool(self._roused)
        if self._rouses:
            self._roused.popleft().release()

    def _follow(self, waiter: Waiting, lock: threading.Lock, deadline: float | None) -> bool:
        """Waits until the wait is over, or the thread shall read. Returns False when time is up."""
        woken = False
        try:
            while waiter in self._followers and self._wants_write():
                left = _TICK_SECONDS if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    break
                if self._poll(select.POLLOUT, min(left, _TICK_SECONDS)):
                    self.write_now()
            left = -1.0
            if deadline is not None:
                left = min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
            woken = lock.acquire(timeout=left)
        finally:
            if not woken:  # time is up, or an interrupt
                with self._lock:
                    if lock in self._roused:
                        self._roused.remove(lock)
                    elif self._followers.pop(waiter, None) is None:  # it was released meanwhile
                        self._rouse_next()
                    self._promote()
        return woken

    def _lead(self, waiter: Waiting, deadline: float | None) -> bool:
        """Reads until the wait is over. Returns False when time is up."""
        try:
            while not waiter.is_over and self.lost is None:
                left = _TICK_SECONDS
                if deadline is not None:
                    left = min(left, deadline - time.monotonic())
                    if left <= 0:
                        return False
                if self.stuck:
                    self._read_and_write(left)
                else:
                    if left != self._patience:
                        self._set_patience(left)
                    self._receive(0)
                if self._due:
                    return True  # callbacks run when another one may read
            return True
        finally:
            self._resign()

    def _resign(self) -> None:
        """Lets another thread read."""
        with self._lock:
            self.is_read = False
            self._used_at = bounds.clock()
            if self._followers or self.unattended or self.stuck:
                self._promote()
            if self.lost is not None:
                self._ended()
        if self._due:
            self._do_due()

    def _promote(self) -> None:
        """Has somebody read, with the lock held, if nobody does."""
        if self.is_read:
            return
        if self._followers:
            self._followers.pop(next(iter(self._followers))).release()
        elif self.unattended or self.stuck:
            self._attendant.attend(self)

    def later(self, do: Callable[[], object]) -> None:
        """Has something done when the lock is free. Called with the lock."""
        self._due.append(do)

    def _do_due(self) -> None:
        with self._lock:
            due, self._due = self._due, []
        for action in due:
            action()

    # -- the attendant --

    def _attended(self) -> None:
        """Sees to it that somebody reads and writes for those who do not wait."""
        if self.stuck or (self.unattended and not self.is_read):
            self._attendant.attend(self)

    def claim(self) -> bool:
        """Takes the part of the reader if it is free, and needed."""
        with self._lock:
            if self.is_read or not self.unattended:
                return False
            self.is_read = True
            return True

    def release(self) -> None:
        """Gives the part of the reader back."""
        self._resign()

    def events(self, *, reads: bool) -> int:
        """What the attendant waits for on the socket; 0 if it is not needed any more.

        Args:
            reads: whether it has the part of the reader.
        """
        if self.lost is not None:
            return 0
        write = select.POLLOUT if self._wants_write() else 0
        return write | (select.POLLIN if reads and (self.unattended or write) else 0)

    def happened(self, events: int, *, reads: bool) -> bool:
        """Does what can be done on the socket now. Returns whether the attendant still reads."""
        if events & select.POLLOUT:
            self.write_now()
        if reads and events & ~select.POLLOUT:
            self._receive(NOW)
            if self._due:  # callbacks run when another one may read
                self._resign()
                return False
        return reads

    # -- reading --

    def _read_and_write(self, seconds: float) -> None:
        """Waits until the full socket can be read or written, for some time, and does that."""
        found = self._poll(select.POLLOUT | select.POLLIN, seconds)
        if found & select.POLLOUT:
            self.write_now()
        if found & ~select.POLLOUT:
            self._receive(NOW)

    def _set_patience(self, seconds: float) -> None:
        """Sets how long the socket waits for bytes."""
        whole = int(seconds)
        wanted = struct.pack("ll", whole, max(int((seconds - whole) * 1e6), 1 - whole))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wanted)
        self._patience = seconds

    def _receive(self, flags: int) -> bool:
        """Receives bytes and takes them. Returns whether there were any."""
        space = self._wire.space() if self._cipher is None else None
        direct = space is not None
        try:
            count = self._socket.recv_into(self._buffer if space is None else space, 0, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            with self._lock:
                self._break(error)
            return False
        with self._lock:
            self._came(count, direct=direct)
            if self.lost is not None:
                return False
            if self._is_written or self.stuck or not (self._wire.out and self._flush()):
                return True
            self._is_written = True
        self._write()
        return True

    # -- writing --

    def flush(self) -> None:
        """Sends what waits, for a thread that does not go on to wait."""
        with self._lock:
            free = not (self._is_written or self.stuck) and self.lost is None and self._flush()
            self._is_written = free or self._is_written
        if free:
            self._write()
        self._attended()

    def _write(self) -> None:
        """Writes until nothing waits or the socket takes no more, and gives the part back."""
        try:
            while True:
                self._send()
                if self._unsent:
                    continue
                with self._lock:
                    if not self._flush():
                        self._is_written = False
                        if self.lost is not None:
                            self._ended()
                        return
        except BlockingIOError:
            with self._lock:
                self.stuck = self._wire.paused = True
                self._is_written = False
                if self.lost is not None:
                    self._ended()
        except OSError:  # the reader finds out why; without calls there is none
            with self._lock:
                self._unsent.clear()
                self.is_open = self._is_written = False
                if self.lost is not None:
                    self._ended()
                else:
                    self._open_next()
            self._do_due()

    def _wants_write(self) -> bool:
        """Whether the socket is full, and nobody writes."""
        return self.stuck and not self._is_written

    def write_now(self) -> None:
        """Goes on when the socket takes bytes again."""
        with self._lock:
            if not self._wants_write():
                return
            self.stuck = False
            self._is_written = True
            self._unblock()
        self._write()

    def _poll(self, what: int, seconds: float) -> int:
        poll = select.poll()
        try:
            poll.register(self._socket, what)
        except ValueError:  # it was closed meanwhile
            return 0
        found = poll.poll(seconds * 1000)
        return found[0][1] if found else 0

    # -- the end --

    def _tell_end(self) -> None:
        if not self._is_written:  # else the thread that writes goes on with that
            super()._tell_end()

    def _ended(self) -> None:
        """Closes the socket, with the lock held, if nobody uses it."""
        if not self.is_read and not self._is_written:
            self._socket.close()

    def close(self) -> None:
        """Ends the connection at once. Idempotent."""
        with self._lock:
            self._end(closed())
        self._do_due()

    def abandon(self) -> None:
        self._lock = threading.Lock()
        super().abandon()
