"""What a process inherits when it is forked, and must not use.

Threads and connections stay with the parent. A call on an inherited connection would wait for ever,
and so might the end of one: another thread of the parent may have held its lock. So everything that
has a connection is told in the child, refuses calls from then on, and is never destroyed.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Final, Protocol


class Inheritable(Protocol):
    def inherit(self) -> None:
        """Called in a child process, which has one thread. It may take no lock: nobody may be left
        to release it."""


_known: set[weakref.ref[Inheritable]] = set()
"""A plain set: a `weakref.WeakSet` takes a lock."""
_kept: Final[list[Inheritable]] = []
_process = object()


def process() -> object:
    """Identifies this process. What a child inherits has another one's."""
    return _process


def tell_of_forks(each: Inheritable) -> None:
    """Has `each` told in every child of this process, if it still exists then."""
    _known.add(weakref.ref(each, _known.discard))


def _in_child() -> None:
    global _process
    _process = object()
    for reference in list(_known):
        if (each := reference()) is not None:
            _kept.append(each)
            each.inherit()
    _known.clear()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # not even at the end of the interpreter


os.register_at_fork(after_in_child=_in_child)
