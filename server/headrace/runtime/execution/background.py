"""A thread for work that goes on beside the requests: compiles, and measurements of devices."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_log = logging.getLogger(__name__)
_IDLE_SECONDS: Final = 1.0
"""How long the thread waits for more work before it ends."""


class Background:
    """Does one piece of work after the other on a thread of its own, which ends when there is none.
    An owner asks for one piece at a time, so that no owner keeps others waiting for long.
    Thread-safe: `_lock` guards all fields.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[tuple[object, Callable[[], object]]] = deque()
        self._running: object = None
        self._thread: threading.Thread | None = None
        self._ends = False

    def is_here(self) -> bool:
        """Whether this is the thread."""
        return threading.current_thread() is self._thread

    def start(self, owner: object, work: Callable[[], object]) -> None:
        """Has the work done later. It must not raise, and must not call `forget`."""
        with self._lock:
            if self._ends:
                return
            self._waiting.append((owner, work))
            self._changed.notify_all()
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                with suppress(RuntimeError):  # the system has no thread; it waits for more work
                    thread.start()
                    self._thread = thread

    def forget(self, owner: object) -> None:
        """Drops the owner's work, and waits for the end of that which has begun."""
        with self._lock:
            self._waiting = deque(each for each in self._waiting if each[0] is not owner)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._running is not owner)

    def wait(self, owner: object) -> None:
        """Waits until all the owner's work is done. For tests."""
        with self._lock:
            self._changed.wait_for(
                lambda: (
                    self._running is not owner
                    and all(each is not owner for each, _ in self._waiting)
                )
            )

    def stop(self) -> None:
        """Drops all work, and waits for the end of the thread."""
        with self._lock:
            self._ends = True
            self._waiting.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._running = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._ends, _IDLE_SECONDS)
                if not self._waiting:
                    self._thread = None
                    return
                self._running, work = self._waiting.popleft()
            try:
                work()
            except Exception:  # noqa: BLE001 - the thread works for other networks too
                _log.exception("%s: a piece of work failed", self._name)
            del work  # which keeps the network
