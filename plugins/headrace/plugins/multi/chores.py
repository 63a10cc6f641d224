"""What a thread has to do, one thing after the other, though doing one may bring up others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Chores(Generic[T]):
    """A part that runs inline, or whose device fails at once, ends before its submission returns,
    and its end is something to do. That is left to the call that is under way on the thread, so
    that the stack does not grow with it.

    Thread-safe: what a thread has to do is its own, and single operations on a dictionary are
    atomic.

    Args:
        do_one: does one thing; told whether it may run inline.
    """

    def __init__(self, do_one: Callable[[T, bool], None]) -> None:
        self._do_one = do_one
        self._left: dict[int, deque[T]] = {}  # by thread

    def __call__(self, todo: Sequence[T], *, inline: bool = False) -> None:
        """Does these, or has them done before the call that is under way returns.

        Args:
            inline: whether the first may run inline.
        """
        if not todo:
            return
        thread = threading.get_ident()
        mine = self._left.get(thread)
        if mine is not None:
            mine.extend(todo)
            return
        mine = self._left[thread] = deque(todo)
        try:
            while mine:
                self._do_one(mine.popleft(), inline)
                inline = False
        finally:
            del self._left[thread]
