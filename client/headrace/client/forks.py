"""What a process inherits when it is forked.

Threads stay with the parent, and so do connections: what two processes write to one is of use to
neither. So everything that has them is told in the child, and begins anew there. What is in flight
belongs to the parent.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol


class Inheritable(Protocol):
    def inherit(self) -> None:
        """Called in a child process, which has one thread. It replaces its locks: nobody may be
        left to release them."""


_known: set[weakref.ref[Inheritable]] = set()
"""A plain set: a `weakref.WeakSet` takes a lock."""
_process = object()


def process() -> object:
    """Identifies this process. What a child inherits has another one's."""
    return _process


def tell_of_forks(each: Inheritable) -> None:
    """Has `each` told in every child of this process, if it still exists then."""
    _known.add(weakref.ref(each, _known.discard))


def keep(each: object) -> None:
    """Has something of gRPC's never destroyed, not even at the end of the interpreter: another
    thread of the parent may have held its lock."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def _in_child() -> None:
    global _process
    _process = object()
    for reference in list(_known):
        if (each := reference()) is not None:
            each.inherit()


os.register_at_fork(after_in_child=_in_child)
