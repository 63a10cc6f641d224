"""A loop instead of recursion, for steps whose end starts further steps.

A virtual device submits a part of a request to another device. If the part runs inline, or fails at
once, it ends before its submission returns, and its end submits the next parts. Without a
trampoline the stack would grow with every part.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Trampoline(Generic[T]):
    """Runs the steps that a thread starts one after the other, in the thread's outermost call.

    Thread-safe: each thread has its own queue, and single operations on a dictionary are atomic.

    Args:
        inline_seconds: how long further steps of a call may run inline too, after the first.
    """

    __slots__ = ("_inline_seconds", "_queues")

    def __init__(self, *, inline_seconds: float = 0.0) -> None:
        self._inline_seconds = inline_seconds
        self._queues: dict[int, deque[T]] = {}  # by thread

    def __call__(
        self, take_step: Callable[[T, bool], object], steps: Sequence[T], *, inline: bool = False
    ) -> None:
        """Takes these steps, or leaves them to the outer call on this thread if there is one.

        Args:
            take_step: takes one step, and is told whether it may run inline. It does not raise, and
                it is not kept, because an owner and its bound method would keep each other alive.
            inline: whether the thread can spare the time of a tiny network. A step runs inline only
                if no other step waits for the thread.
        """
        if not steps:
            return
        thread = threading.get_ident()
        queue = self._queues.get(thread)
        if queue is not None:
            queue.extend(steps)
            return
        queue = self._queues[thread] = deque(steps)
        inline_until = time.monotonic() + self._inline_seconds if inline else 0.0
        try:
            while queue:
                step = queue.popleft()
                take_step(step, inline and not queue)
                inline = inline and time.monotonic() < inline_until
        finally:
            del self._queues[thread]
