"""The segments of one client. They are made when needed, and lent to one request at a time."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.client.forks import tell_of_forks
from headrace.client.shared_memory.handover import Handover
from headrace.client.shared_memory.segment import FOLDER, ClientSegment, NamedSegment, sweep
from headrace.ipc.segments import rounded

MAX_SEGMENTS: Final = 16
MAX_BYTES: Final = 256 << 20
PAUSE_SECONDS: Final = 10.0
"""How long no segment is made after the system had no room for one."""
_SMALLEST_BYTES: Final = 1 << 20


class RegionPool:
    """The segments. Thread-safe; `_lock` guards everything. No file is made while it is held.

    Args:
        folder: where segments with a name lie.
        handover: hands segments without a name to the server. None: they have names.

    A segment is idle, lent, or being registered. If its request was given up, it never comes back.
    The server may still write to it, and that then does no harm.
    """

    def __init__(
        self,
        folder: Path = FOLDER,
        clock: Callable[[], float] = time.monotonic,
        handover: Handover | None = None,
    ) -> None:
        self._folder = folder
        self._handover = handover
        self._clock = clock
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[ClientSegment] = []  # the one used last comes last
        self._all: set[ClientSegment] = set()
        # Names that the server may know although their files are gone. It forgets most by itself.
        self._dropped: deque[str] = deque(maxlen=MAX_SEGMENTS)
        self._bytes = 0
        self._reserved = 0  # segments that are being made
        self._grows_again_at = -math.inf
        self._closed = False
        # Also when the process ends.
        self._end = weakref.finalize(self, _remove, self._all, handover)
        tell_of_forks(self)

    def inherit(self) -> None:
        self._end.detach()
        self._lock = threading.Lock()
        if self._handover is not None:
            self._handover.inherit()

    def take(self, size: int) -> ClientSegment | None:
        """An idle segment of at least so many bytes; None if there is none."""
        with self._lock:
            # Of equal ones the last: its bytes are the likeliest to lie in the processor's cache.
            fitting = [segment for segment in reversed(self._idle) if segment.size >= size]
            if not fitting or os.getpid() != self._process:
                return None
            best = min(fitting, key=lambda each: each.size)
            self._idle.remove(best)
            return best

    def make(self, size: int) -> ClientSegment | None:
        """A new segment, which is not idle until it is given back; None if none may be made. It
        replaces an idle one that is too small, and others if there is no room."""
        size = rounded(size, _SMALLEST_BYTES)
        if not self._make_room(size):
            return None
        try:
            made = self._made(size)
        except OSError:  # no /dev/shm, or a full one
            made = None
            self.pause()
        with self._lock:
            self._reserved -= 1
            self._bytes -= size
            if made is not None and not self._closed:
                self._all.add(made)
                self._bytes += size
                return made
        if made is not None:
            made.remove()
        return None

    def _made(self, size: int) -> ClientSegment:
        if self._handover is not None:
            return self._handover.make(size)
        sweep(self._folder)
        return NamedSegment(size, self._folder)

    def give(self, segment: ClientSegment) -> None:
        """Makes the segment idle, because the server is done with it."""
        with self._lock:
            if segment in self._all:
                self._idle.append(segment)

    def drop(self, segment: ClientSegment) -> None:
        """Forgets the segment, because the server may not be done with it. The server forgets it,
        too, when it finds that the file has no name."""
        with self._lock:
            self._forget(segment)

    @property
    def hands_over(self) -> bool:
        """Whether the segments are handed to the server, and have no names."""
        return self._handover is not None

    def pause(self) -> None:
        """Makes no segment for a while."""
        self._grows_again_at = self._clock() + PAUSE_SECONDS

    def grow_no_more(self) -> None:
        """Makes no more segments, because the server refuses them."""
        self._grows_again_at = math.inf

    @property
    def may_grow(self) -> bool:
        """Whether it makes sense to ask for another segment."""
        if self._closed or os.getpid() != self._process:
            return False
        return self._clock() >= self._grows_again_at

    def has_room(self, size: int) -> bool:
        """Whether `make` may make a segment of so many bytes, perhaps in the place of idle ones."""
        with self._lock:
            idle = sum(segment.size for segment in self._idle)
            return self._fits(rounded(size, _SMALLEST_BYTES), len(self._idle), idle)

    def close(self) -> list[str]:
        """Removes all segments. Returns the names that the server knows until it is told; none in a
        process that was forked."""
        with self._lock:
            self._closed = True
            names = [*self._dropped, *(segment.name for segment in self._all)]
            for segment in list(self._all):
                self._forget(segment)
            self._dropped.clear()
        if self._handover is not None:
            self._handover.close()
            return []  # the server forgets them with the connection
        return names if os.getpid() == self._process else []

    def _make_room(self, size: int) -> bool:
        """Reserves room for a segment of this size; returns whether there is room."""
        with self._lock:
            if not self.may_grow or size > MAX_BYTES:
                return False
            too_small = [segment for segment in self._idle if segment.size < size]
            if too_small:
                self._forget(too_small[0])
            while self._idle and not self._fits(size):
                self._forget(self._idle[0])
            if not self._fits(size):
                return False
            self._reserved += 1
            self._bytes += size
            return True

    def _fits(self, size: int, less: int = 0, less_bytes: int = 0) -> bool:
        """Whether a segment fits beside the others, of which `less` with `less_bytes` go."""
        count = len(self._all) + self._reserved - less
        return count < MAX_SEGMENTS and self._bytes - less_bytes + size <= MAX_BYTES

    def _forget(self, segment: ClientSegment) -> None:
        if segment in self._all:
            self._all.remove(segment)
            self._bytes -= segment.size
            if segment in self._idle:
                self._idle.remove(segment)
            self._dropped.append(segment.name)
            segment.remove()


def _remove(segments: set[ClientSegment], handover: Handover | None) -> None:
    for segment in segments:
        segment.remove()
    if handover is not None:
        handover.close()
