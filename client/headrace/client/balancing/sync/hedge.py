"""Requests of the synchronous client that go to a second server if the first one is slow."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from concurrent import futures
from typing import Any

from headrace.client import errors
from headrace.client.balancing.sync.request import BalancedFuture
from headrace.client.channel.channel import Reply
from headrace.client.errors import Error
from headrace.client.plans.plan import Budget
from headrace.client.request import OutcomeFuture


class HedgedFuture(OutcomeFuture):
    """The first answer to a request. Thread-safe.

    The slower attempt is cancelled. If one fails, the other one's answer is taken. `_lock` guards
    how many attempts have no outcome, and whether the request is cancelled and whether it is
    settled.
    """

    def __init__(self, client: Any, request: Any, timeout: float | None) -> None:
        self._client = client
        self._request = request
        self._budget = None if timeout is None else Budget(timeout)
        self._lock = threading.Lock()
        self._open = 1
        self._settled = False
        self._cancelled = False
        self._outcome: futures.Future[Reply] = futures.Future()
        self._both = [BalancedFuture(client, "Infer", request, timeout)]
        self._both[0].add_done_callback(self._ended)

    def cancel(self) -> bool:
        with self._lock:
            if self._settled:
                return False
            self._cancelled = True
        for each in list(self._both):
            each.cancel()
        return True

    def hedge(self) -> None:
        """Sends the request to a second server, if there is one and the budget allows it."""
        server = self._both[0].server
        if server is None or self.done() or not self._client.fleet.may_hedge(server):
            return
        with self._lock:
            if self._settled or self._cancelled:
                return
            self._open += 1
        left = None if self._budget is None else self._budget.left_seconds
        try:
            second = BalancedFuture(self._client, "Infer", self._request, left, (server,))
        except Error as error:  # the client has been closed meanwhile
            self._failed(error)
            return
        self._both.append(second)
        second.add_done_callback(self._ended)
        if self.done() or self._cancelled:  # meanwhile
            second.cancel()

    def _ended(self, outcome: BalancedFuture) -> None:
        error = outcome.exception()
        if error is not None:
            self._failed(error)
        elif self._settles(answered=True):
            if self._cancelled:
                self._outcome.set_exception(errors.cancelled())
            else:
                self._outcome.set_result(outcome.result())
            for each in list(self._both):
                each.cancel()

    def _failed(self, error: BaseException) -> None:
        if self._settles(answered=False):
            self._outcome.set_exception(errors.cancelled() if self._cancelled else error)

    def _settles(self, *, answered: bool) -> bool:
        """Whether the outcome of this attempt is that of the request."""
        with self._lock:
            self._open -= 1
            if self._settled or (self._open and not answered):
                return False
            self._settled = True
            return True


class Hedges:
    """The requests that may have to go to a second server, and when. Thread-safe.

    All requests of a client wait for the same time, so they stand in the order of their times. A
    request that has its answer is not kept alive, because answers may be large.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: deque[tuple[float, weakref.ref[HedgedFuture]]] = deque()

    def add(self, request: HedgedFuture, at: float) -> bool:
        """Notes a request, and when it is due. Whether it is the only one."""
        with self._lock:
            self._due.append((at, weakref.ref(request)))
            return len(self._due) == 1

    def due(self, now: float) -> list[HedgedFuture]:
        """The requests whose time has come, each once."""
        found = []
        with self._lock:
            while self._due and self._due[0][0] <= now:
                request = self._due.popleft()[1]()
                if request is not None and not request.done():
                    found.append(request)
        return found

    def next_at(self) -> float | None:
        """When to ask `due` next; None if there is nothing to wait for."""
        with self._lock:
            return self._due[0][0] if self._due else None
