"""The one thread of a synchronous channel, which sleeps while callers read for themselves."""

from __future__ import annotations

import math
import os
import select
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from headrace.client.channel.threads.connection import SharedConnection

if TYPE_CHECKING:
    from headrace.client.channel.threads.started import StartedCall

_MOST_SECONDS: Final = 3600.0
_BELLS: Final = 4096


class Helper:
    """Reads the replies of started calls while nobody else does, and keeps their times. Its thread
    begins when it is needed. Thread-safe; `_lock` guards the calls, and what there is to look at.
    It may be taken with a connection's lock, and never the other way round.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[StartedCall, None] = {}
        self._wanted: set[SharedConnection] = set()
        self._wakes_at = math.inf
        self._bell: tuple[int, int] | None = None  # a pipe
        self._thread: threading.Thread | None = None
        self._stopped = False

    def inherit(self) -> None:
        """Begins anew in a process that was forked."""
        self._close_bell()
        self._lock = threading.Lock()
        self._calls, self._wanted = {}, set()
        self._wakes_at, self._thread = math.inf, None

    def attend(self, connection: SharedConnection) -> None:
        with self._lock:
            if connection not in self._wanted:
                self._wanted.add(connection)
                self._ring()

    def add(self, call: StartedCall) -> None:
        """Keeps the time of a call."""
        due = call.due
        with self._lock:
            self._calls[call] = None
            if due < self._wakes_at:
                self._wakes_at = due
                self._ring()

    def remove(self, call: StartedCall) -> None:
        with self._lock:
            self._calls.pop(call, None)

    def stop(self) -> list[StartedCall]:
        """Ends the thread, and returns the calls that go on. Idempotent."""
        with self._lock:
            self._stopped = True
            if self._thread is not None:
                self._ring()
            return list(self._calls)

    def join(self, seconds: float) -> None:
        """Waits for the thread's end after `stop`."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def _ring(self) -> None:
        """Wakes the thread, with the lock held."""
        if self._thread is None and not self._stopped:
            self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            bell, name = self._bell[0], "headrace-channel"
            self._thread = threading.Thread(target=_run, args=(self, bell), name=name, daemon=True)
            self._thread.start()
        if self._bell is not None:
            with suppress(BlockingIOError):  # it rings already
                os.write(self._bell[1], b"\0")

    def _close_bell(self) -> None:
        bell, self._bell = self._bell, None
        for descriptor in bell or ():
            os.close(descriptor)

    def ended(self) -> None:
        """The thread has ended."""
        with self._lock:
            self._close_bell()

    # -- the thread --

    def look(self, mine: dict[SharedConnection, bool]) -> float | None:
        """Takes what is new, and does what is due. `mine` are the connections that it watches, and
        whether it reads them.

        Returns:
            How many seconds to wait; None when the thread ends.
        """
        with self._lock:
            wanted, self._wanted = self._wanted, set()
            stopped = self._stopped
        for connection in wanted:
            mine[connection] = mine.get(connection, False) or connection.claim()
        for connection, reads in list(mine.items()):
            if stopped or not connection.events(reads=reads):
                del mine[connection]
                if reads:
                    connection.release()
        if stopped:
            return None
        now = time.monotonic()
        with self._lock:
            if self._wakes_at > now:
                return min(self._wakes_at - now, _MOST_SECONDS)
            due = [call for call in self._calls if call.due <= now]
        for call in due:
            call.on_due()
        with self._lock:
            self._wakes_at = min((call.due for call in self._calls), default=math.inf)
            return max(min(self._wakes_at - time.monotonic(), _MOST_SECONDS), 0.0)


def _run(helper: Helper, bell: int) -> None:
    """The thread. It ends with the helper's `stop`."""
    mine: dict[SharedConnection, bool] = {}
    try:
        while (seconds := helper.look(mine)) is not None:
            poll = select.poll()
            poll.register(bell, select.POLLIN)
            found: dict[int, Any] = {}
            for connection, reads in mine.items():
                events, number = connection.events(reads=reads), connection.fileno()
                if events and number >= 0:
                    found[number] = connection
                    poll.register(number, events)
            for number, events in poll.poll(min(seconds * 1000 + 1, 2**31 - 1)):
                if number == bell:
                    os.read(bell, _BELLS)
                else:
                    connection = found[number]
                    mine[connection] = connection.happened(events, reads=mine[connection])
    finally:
        helper.ended()
