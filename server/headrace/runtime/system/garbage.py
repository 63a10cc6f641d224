"""When Python's garbage collector looks at all objects, which stops every thread meanwhile.

A loaded network has some 30 objects a layer, and a look at a million objects takes most of a
second. So once `look_seldom` was called, this holds:

- No look begins while a load, a query or an unload runs (`undisturbed`).
- After one, if many objects were made, all that are there are excluded from later looks. Networks'
  graphs are freed by `graph_memory.py`, so they need no look.
- Rings of references that were excluded stay in memory. So what is excluded is counted, but not
  often: it takes 0.06 s for a million objects. If more is left than the loaded networks have, one
  look at everything finds the rings.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_USUALLY: Final = 100
"""How many collections of the middle generation come before a collection of the oldest one. That is
some 700,000 objects that were created and not freed. Connections and failed calls leave cycles of
references within gRPC, uvicorn and uvloop. With 1000, they took 10 MiB more each minute of a busy
server for half an hour. A collection looks at what was made since the start: some 26,000 objects
without large networks, which takes 2 ms. Python itself skips it until a quarter more have come."""

_MEANWHILE: Final = 2000
"""The same while a load runs. A load of 20,000 layers takes 250. It is not endless, because a
backend may never come back."""

_MANY: Final = 40_000
"""A look at more objects takes longer than 5 ms."""

_LEFT: Final = 50_000
"""Rings of fewer objects, some 5 MiB, are not worth a look at everything."""

_UNCOUNTED: Final = 1_000_000
"""So many objects may be excluded before all that are excluded are counted."""


class _Looks:
    """The process's looks for garbage. Thread-safe: `_lock` guards the rest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seldom = False
        self._tasks = 0
        self._before = 0  # what was made before the first task began, or what `_new` has counted
        self._new = 0  # what was made while tasks ran, and is not excluded
        self._known = 0  # what was excluded at the start, and what loaded networks made
        self._counted = 0  # what was excluded when it was counted
        self._since = 0  # what was excluded since

    def seldom(self) -> None:
        with self._lock:
            self._seldom = True
            self._at_all()
            self._look_after(_USUALLY)

    def begin(self) -> None:
        with self._lock:
            if not self._tasks:
                self._before = made()
            self._look_after(_MEANWHILE)
            self._tasks += 1

    def end(self) -> None:
        with self._lock:
            now = made()
            self._new += now - self._before
            self._before = now
            if self._seldom and self._new > _MANY:
                gc.freeze()
                self._since += self._new
                self._new = 0
            self._tasks -= 1
            self._look_after(_MEANWHILE if self._tasks else _USUALLY)

    def kept(self, objects: int) -> None:
        with self._lock:
            self._known += objects

    def gone(self, objects: int) -> None:
        with self._lock:
            self._known -= objects
            if self._since <= max(_UNCOUNTED, 4 * self._counted):
                return
            self._since = 0
            self._counted = gc.get_freeze_count()
            if self._counted - self._known > max(_LEFT, self._counted // 4):
                self._at_all()

    def at_all(self) -> None:
        with self._lock:
            self._at_all()

    def _at_all(self) -> None:
        if not self._seldom:  # whoever embeds the runtime decides what is excluded
            gc.collect()
            return
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._new = self._since = 0
        self._known = self._counted = gc.get_freeze_count()

    def _look_after(self, collections: int) -> None:
        if self._seldom:
            new, middle, _ = gc.get_threshold()
            gc.set_threshold(new, middle, collections)


_looks = _Looks()


def look_seldom() -> None:
    """Makes looks for garbage rare, and excludes all present objects from them."""
    _looks.seldom()


@contextmanager
def undisturbed() -> Iterator[None]:
    """For a task that makes or frees many objects: no look at all objects begins meanwhile."""
    _looks.begin()
    try:
        yield
    finally:
        _looks.end()


def made() -> int:
    """How many objects the process has made and kept so far, at most: when as many as the first
    threshold are new, there is a collection. `gc.get_objects` would tell how many are there now,
    but it gives references to tuples that other threads are just making, which then fail."""
    collections: int = sum(each["collections"] for each in gc.get_stats())
    return collections * gc.get_threshold()[0]


def count_kept(objects: int) -> None:
    """Tells that a network is loaded, so that its objects are not taken for rings.

    Args:
        objects: how many were made by its load.
    """
    _looks.kept(objects)


def count_gone(objects: int) -> None:
    """Looks at all objects if too many are left that no network accounts for.

    Args:
        objects: as in `count_kept`, for a network that is gone.
    """
    _looks.gone(objects)


def look_at_all() -> None:
    """Looks for garbage among all objects, the excluded ones too."""
    _looks.at_all()
