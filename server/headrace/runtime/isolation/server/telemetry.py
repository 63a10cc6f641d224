"""Asks a worker for its counters when the server is scraped, and waits only briefly."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from headrace.runtime.errors import HeadraceError
from headrace.runtime.isolation.server.process import WorkerProcess
from headrace.runtime.isolation.wire.telemetry import WorkerCounts, counts_from_json

_log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 0.25
_FRESH_SECONDS: Final = 0.05  # so that one scrape, which reads many numbers, asks only once
_LATE_SECONDS: Final = 1.0  # so that one scrape waits only once for a slow worker


NOTHING: Final = WorkerCounts()


class Telemetry:
    """The worker's last answer. Thread-safe: `_lock` guards all fields. It is held while one thread
    waits for an answer, at most `PATIENCE_SECONDS`, and other threads wait for that thread.

    A worker that has ended holds and counts nothing. If a worker does not answer in time, its last
    answer is used, and it is not asked again before it has answered.

    Args:
        worker: returns the running worker, or raises Unavailable.
        clock: a monotonic clock.
    """

    def __init__(
        self, worker: Callable[[], WorkerProcess], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._of: WorkerProcess | None = None
        self._pending: Future[tuple[Any, list[memoryview]]] | None = None
        self._counts: WorkerCounts | None = None
        self._again_at = clock()

    def counts(self) -> WorkerCounts | None:
        """The last answer; None if the running worker has not answered yet."""
        with self._lock:
            if self._clock() >= self._again_at:
                self._ask()
                late = self._pending is not None
                self._again_at = self._clock() + (_LATE_SECONDS if late else _FRESH_SECONDS)
            return self._counts

    def _ask(self) -> None:
        try:
            if self._pending is None:
                worker = self._worker()
                if worker is not self._of:  # a new worker numbers its networks anew
                    self._of, self._counts = worker, None
                self._pending = worker.ask("telemetry")
            facts, _ = self._pending.result(PATIENCE_SECONDS)
        except FutureTimeout:
            return
        except HeadraceError:
            self._of, self._pending, self._counts = None, None, NOTHING
            return
        self._pending = None
        try:
            self._counts = counts_from_json(facts)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            _log.warning("a worker's counters cannot be read: %r", error)
