"""What the shadows of a server have to do waits here until there is time for it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from headrace.runtime.execution.background import Background
from headrace.runtime.network.values import Value
from headrace.runtime.sequences.memory import SharedBytes

_QUIET_SECONDS: Final = 0.02
_PAUSES: Final = 400
_MOST_WAITING: Final = 16
_MOST_BYTES: Final = 1 << 26
_LEAST_BYTES: Final = 1 << 16  # that each counts for
_MOST_PARTS: Final = 4096
_LOOK_SECONDS: Final = 0.02


class SpareTime:
    """Decides when shadows may run: while no request is in flight, and none has come or ended for
    `_QUIET_SECONDS`. On a server that is never so quiet they get one part in `_PAUSES` of the time.
    So they meet fewer requests than one in a hundred, and callers' 99th percentile stays.

    All times are on the monotonic clock. Belongs to the thread of the shadows.
    """

    def __init__(self) -> None:
        self._due = 0.0
        self._counts = 0, 0
        self._quiet_since = 0.0

    def is_here(self, now: float, accepted: int, ended: int) -> bool:
        """
        Args:
            accepted, ended: how many requests the server has accepted, and how many have ended.
        """
        if self._counts != (accepted, ended):
            self._counts, self._quiet_since = (accepted, ended), now
        quiet = accepted == ended and now - self._quiet_since >= _QUIET_SECONDS
        return quiet or now >= self._due

    def used(self, began: float, ended: float) -> None:
        """A shadow has run."""
        self._due = ended + _PAUSES * (ended - began)


class SpareQueue:
    """Does one piece of work after the other, on one thread, in spare time. Thread-safe: `_lock`
    guards `_waiting`, and only that of `SharedBytes` is taken under it.

    Args:
        counts: how many requests the server has accepted, and how many of them have ended.
    """

    def __init__(self, counts: Callable[[], tuple[int, int]]) -> None:
        self._counts = counts
        self._spare_time = SpareTime()
        self._memory = SharedBytes(_MOST_BYTES)
        self._thread = Background("headrace-shadow")
        self._lock = threading.Lock()
        self._waiting: Counter[threading.Event] = Counter()

    def put(
        self,
        ended: threading.Event,
        work: Callable[[], object],
        held: Sequence[Value],
        whose: str,
    ) -> bool:
        """Queues work for when nothing else is to be done. Returns False if the queue is full.

        Args:
            ended: set when the shadow ends, whose work is dropped then.
            held: the values that the work keeps.
            whose: the tenant whose network it is, or a network that all share.
        """
        size = _LEAST_BYTES + bytes_held(held)
        with self._lock:
            fits = self._waiting[ended] < _MOST_WAITING and self._memory.takes(size, whose)
            self._waiting[ended] += fits

        def take() -> None:
            try:
                if self._waits_for_spare_time(ended):
                    began = time.monotonic()
                    work()
                    self._spare_time.used(began, time.monotonic())
            finally:
                with self._lock:
                    self._waiting[ended] -= 1
                    self._waiting += Counter()  # drops what is 0
                self._memory.takes(-size, whose)

        if fits:
            self._thread.start(ended, take)
        return fits

    def stop(self) -> None:
        """Drops what waits, and waits for the thread."""
        self._thread.stop()

    def _waits_for_spare_time(self, ended: threading.Event) -> bool:
        """Returns False if the shadow has ended meanwhile."""
        while not self._spare_time.is_here(time.monotonic(), *self._counts()):
            if ended.wait(_LOOK_SECONDS):
                return False
        return not ended.is_set()


def bytes_held(values: Sequence[Value]) -> int:
    """The bytes of the memory that values keep. A value may be a small part of it: of a message, or
    of a batch. Values of too many parts to be measured in passing have too many.
    """
    memory: dict[int, int] = {}
    parts: list[Any] = [*values]
    for part in parts:
        if isinstance(part, list):
            parts += part[:_MOST_PARTS]
        elif isinstance(part, str | bytes):
            memory[id(part)] = len(part)
        elif part is not None and part.dtype == object:
            parts.extend(part.flat[:_MOST_PARTS])
        elif part is not None:
            of, size = _memory(part)
            memory[of] = size
        if len(parts) > _MOST_PARTS:
            return _MOST_BYTES + 1
    return sum(memory.values())


def _memory(array: Any) -> tuple[int, int]:
    """What an array lies in, as an identity and its bytes."""
    whole: Any = array
    while isinstance(whole, np.ndarray) and whole.base is not None:
        whole = whole.base
    if isinstance(whole, memoryview):
        whole = whole.obj
    try:
        size = whole.nbytes if isinstance(whole, np.ndarray) else memoryview(whole).nbytes
    except TypeError:  # a backend's own memory
        size = array.nbytes
    return id(whole), size
