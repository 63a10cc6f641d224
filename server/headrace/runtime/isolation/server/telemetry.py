"""What a worker counts, for a scrape of the server: requested, and waited for only briefly."""

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
from headrace.runtime.isolation.wire.telemetry import Told, told_from_json

_log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 0.25
_FRESH_SECONDS: Final = 0.05  # so that one scrape, which reads many numbers, asks once
_LATE_SECONDS: Final = 1.0  # and waits once


NOTHING: Final = Told()


class Telemetry:
    """The last that the worker told. Thread-safe: `_lock` guards all fields, and is held while one
    thread waits for an answer, no longer than `patience`; others wait for that one.

    A worker that has ended holds and counts nothing. Of one that does not answer in time the last
    answer counts, and no other question is put to it before it has answered.

    Args:
        worker: the one that there is; raises Unavailable.
        patience: seconds.
        clock: monotonic.
    """

    def __init__(
        self,
        worker: Callable[[], WorkerProcess],
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._of: WorkerProcess | None = None
        self._pending: Future[tuple[Any, list[memoryview]]] | None = None
        self._told: Told | None = None
        self._again_at = clock()

    def told(self) -> Told | None:
        """None if a worker that lives has not answered yet."""
        with self._lock:
            if self._clock() >= self._again_at:
                self._ask()
                late = self._pending is not None
                self._again_at = self._clock() + (_LATE_SECONDS if late else _FRESH_SECONDS)
            return self._told

    def _ask(self) -> None:
        try:
            if self._pending is None:
                worker = self._worker()
                if worker is not self._of:  # whose networks have numbers of their own
                    self._of, self._told = worker, None
                self._pending = worker.ask("telemetry")
            facts, _ = self._pending.result(self._patience)
        except FutureTimeout:
            return
        except HeadraceError:
            self._of, self._pending, self._told = None, None, NOTHING
            return
        self._pending = None
        try:
            self._told = told_from_json(facts)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            _log.warning("a worker's counters cannot be read: %r", error)
