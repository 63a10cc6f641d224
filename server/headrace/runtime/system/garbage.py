"""When Python's garbage collector looks at all objects, which stops every thread meanwhile.

A loaded network has some 30 objects a layer, and a look at a million objects takes most of a
second. So once `look_seldom` was called, this holds:

- No look begins while a load, a query or an unload runs (`undisturbed`).
- After one, if much has been made, all objects are excluded from later looks. Networks' graphs are
  freed by `graph_memory.py`, so they need no look.
- Rings of references that were excluded stay in memory. If the process has more memory than loaded
  networks account for, one look at everything finds them.

Memory is counted in the blocks that Python has allocated, some two for each object. To count the
objects themselves takes long, and a list of them gives references to tuples that other threads are
just making, which then fail.
"""

from __future__ import annotations

import gc
import sys
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
"""So many objects make a look some 5 ms longer."""

_LEFT: Final = 200_000
"""Rings of fewer blocks, some 15 MiB, are not worth a look at everything."""

_AND_LOADS: Final = 10
"""As many times more blocks may be left while other loads run, because theirs are among them."""

_AN_OBJECT: Final = 2
"""How many blocks an object has, with what belongs to it."""

_A_LAYER: Final = 90
"""How many blocks a loaded network has for each layer: 63 on CPU, 116 on HETERO. What was allocated
during its load does not tell: other threads load, unload and leave rings meanwhile, perhaps for an
hour."""


class _Looks:
    """The process's looks for garbage. Thread-safe: `_lock` guards the rest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seldom = False
        self._tasks = 0
        self._before = 0  # what was made before the first task began, or what `_new` has counted
        self._new = 0  # how many objects were made while tasks ran, and are not excluded
        self._since = 0  # how many objects were excluded since the last look at everything
        self._known = 0  # how many blocks were there then, and those of networks loaded since

    def seldom(self) -> None:
        with self._lock:
            self._seldom = True
            self._at_all()
            self._look_after(_USUALLY)

    def begin(self) -> None:
        with self._lock:
            if not self._tasks:
                self._before = _made()
            self._look_after(_MEANWHILE)
            self._tasks += 1

    def end(self) -> None:
        with self._lock:
            now = _made()
            self._new += now - self._before
            self._before = now
            if self._seldom and self._new > _MANY:
                gc.freeze()
                self._since += self._new
                self._new = 0
            self._tasks -= 1
            self._look_after(_MEANWHILE if self._tasks else _USUALLY)

    def loaded(self, layers: int) -> None:
        with self._lock:
            self._known += layers * _A_LAYER

    def if_much_is_left(self) -> None:
        with self._lock:
            left = min(sys.getallocatedblocks() - self._known, self._since * _AN_OBJECT)
            limit = max(_LEFT, self._known // 4)
            if left > (limit if self._tasks <= 1 else _AND_LOADS * limit):
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
        self._known = sys.getallocatedblocks()

    def _look_after(self, collections: int) -> None:
        if self._seldom:
            new, middle, _ = gc.get_threshold()
            gc.set_threshold(new, middle, collections)


def _made() -> int:
    """How many objects the process has made and kept so far, at most. When as many as the first
    threshold are new, there is a collection."""
    collections: int = sum(generation["collections"] for generation in gc.get_stats())
    return collections * gc.get_threshold()[0]


_looks = _Looks()


def look_seldom() -> None:
    """Makes looks for garbage rare, and excludes all present objects from them."""
    _looks.seldom()


@contextmanager
def without_looks() -> Iterator[None]:
    """For imports and a server's start: no look begins meanwhile. What they make stays, so that
    Python finds next to nothing in a tenth of their time."""
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks:
            gc.enable()


@contextmanager
def undisturbed() -> Iterator[None]:
    """For a task that makes or frees many objects: no look at all objects begins meanwhile."""
    _looks.begin()
    try:
        yield
    finally:
        _looks.end()


def count_loaded(layers: int) -> None:
    """Tells that a network of so many layers is loaded, so that its memory is not taken for rings.
    For a network that is gone, the number is negative."""
    _looks.loaded(layers)


def look_if_much_is_left() -> None:
    """Looks at all objects if many blocks are left that no loaded network accounts for."""
    _looks.if_much_is_left()


def look_at_all() -> None:
    """Looks for garbage among all objects, the excluded ones too."""
    _looks.at_all()
