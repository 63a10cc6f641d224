"""What the shadows of a server have to do waits here until there is time for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headrace.runtime.execution.background import Background
from headrace.runtime.network.values import Value
from headrace.runtime.sequences.memory import SharedBytes

_QUIET_SECONDS: Final = 0.02
_PAUSES: Final = 400
_AT_LEAST: Final = 100
_MOST_WAITING: Final = 16
_MOST_BYTES: Final = 1 << 26
_LEAST_BYTES: Final = 1 << 16  # that each counts for
_MOST_PARTS: Final = 4096
_LOOK_SECONDS: Final = 0.02


class SpareTime:
    """Decides when shadows may run: while no request is in flight, and none has come or ended for
    `_QUIET_SECONDS`. On a server that is never so quiet each tenant's get one part in `_PAUSES` of
    the time, and all together one in `_AT_LEAST`. So they meet fewer requests than one in a
    hundred, and callers' 99th percentile stays.

    All times are on the monotonic clock. Belongs to the thread of the shadows.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._counts = 0, 0
        self._quiet_since = 0.0

    def is_here(self, now: float, accepted: int, ended: int, whose: str = "") -> bool:
        """
        Args:
            accepted, ended: how many requests the server has accepted, and how many have ended.
            whose: the tenant whose shadow it is.
        """
        if self._counts != (accepted, ended):
            self._counts, self._quiet_since = (accepted, ended), now
        quiet = accepted == ended and now - self._quiet_since >= _QUIET_SECONDS
        return quiet or now >= self._due.get(whose, 0.0)

    def used(self, began: float, ended: float, whose: str = "") -> None:
        """A shadow has run."""
        self._due = {each: due for each, due in self._due.items() if due > ended}
        pauses = max(_PAUSES, _AT_LEAST * len({whose, *self._due}))
        self._due[whose] = ended + pauses * (ended - began)


@dataclass(frozen=True, eq=False, slots=True)
class _Work:
    """
    Attributes:
        ended: set when the shadow ends, whose work is dropped then.
        whose: the tenant.
    """

    ended: threading.Event
    run: Callable[[], object]
    size: int
    whose: str


class SpareQueue:
    """Does one piece of work after the other, on one thread, in spare time. A tenant that has used
    its part of the time keeps no other one waiting. Thread-safe: `_lock` guards `_waiting`, and
    only that of `SharedBytes` is taken under it.

    Args:
        counts: how many requests the server has accepted, and how many of them have ended.
    """

    def __init__(self, counts: Callable[[], tuple[int, int]]) -> None:
        self._counts = counts
        self._spare_time = SpareTime()
        self._memory = SharedBytes(_MOST_BYTES)
        self._thread = Background("headrace-shadow")
        self._lock = threading.Lock()
        self._waiting: list[_Work] = []
        self._stops = threading.Event()

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
            there = sum(each.ended is ended for each in self._waiting)
            fits = there < _MOST_WAITING and self._memory.takes(size, whose)
            if fits:
                self._waiting.append(_Work(ended, work, size, whose))
        if fits:
            self._thread.start(self, self._do_one)
        return fits

    def stop(self) -> None:
        """Drops what waits, and waits for the thread."""
        self._stops.set()
        self._thread.stop()

    def _do_one(self) -> None:
        """Does the first work that has spare time, or drops one that nobody wants."""
        while (work := self._next()) is None:
            if self._stops.wait(_LOOK_SECONDS):
                return
        try:
            if not work.ended.is_set():
                began = time.monotonic()
                work.run()
                self._spare_time.used(began, time.monotonic(), work.whose)
        finally:
            with self._lock:
                self._waiting.remove(work)
            self._memory.takes(-work.size, work.whose)

    def _next(self) -> _Work | None:
        now, counts = time.monotonic(), self._counts()
        with self._lock:
            waiting = [*self._waiting]
        for work in waiting:
            if work.ended.is_set() or self._spare_time.is_here(now, *counts, work.whose):
                return work
        return None


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
