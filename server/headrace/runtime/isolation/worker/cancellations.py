"""Cancels a worker's requests and calls."""

from __future__ import annotations

import threading
from collections import OrderedDict

from headrace.runtime.errors import Cancelled
from headrace.runtime.execution.cancel import CancelToken

_REMEMBERED = 1024


class Cancellations:
    """The tokens of running requests and calls, by number. Thread-safe; `_lock` guards both tables.

    A cancellation has its own pipe and may arrive before the request that it cancels. So the last
    cancellations that found no request are remembered. Numbers are never used twice.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, CancelToken] = {}
        self._early: OrderedDict[int, None] = OrderedDict()

    def begin(self, number: int) -> CancelToken:
        """A token for a request that begins now. It is cancelled if the cancellation came first."""
        token = CancelToken()
        with self._lock:
            self._running[number] = token
            early = self._early.pop(number, 0) is None
        if early:
            token.cancel(_cancelled())
        return token

    def end(self, number: int) -> None:
        with self._lock:
            self._running.pop(number, None)

    def cancel(self, number: int) -> None:
        with self._lock:
            token = self._running.get(number)
            if token is None:
                self._early[number] = None
                if len(self._early) > _REMEMBERED:
                    self._early.popitem(last=False)
        if token is not None:
            token.cancel(_cancelled())


def _cancelled() -> Cancelled:
    return Cancelled("nobody waits for it any more")
