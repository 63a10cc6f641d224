"""What a worker counts, for whoever scrapes the server: asked for, and never waited for long."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.runtime.errors import HeadraceError
from headrace.runtime.histogram import HistogramSnapshot
from headrace.runtime.isolation.process import WorkerProcess
from headrace.runtime.series import Family, SeriesSnapshot

_log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 0.25
_FRESH_SECONDS: Final = 0.05  # so that one scrape, which reads many numbers, asks once
_LATE_SECONDS: Final = 1.0  # and waits once


@dataclass(frozen=True, slots=True)
class Told:
    """
    Attributes:
        memory_bytes: what networks hold, by device id.
        series: of the plugin's own, by the worker's number of the network.
    """

    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    series: Mapping[int, tuple[SeriesSnapshot, ...]] = field(default_factory=dict)


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
        self._asked: Future[tuple[Any, list[memoryview]]] | None = None
        self._told: Told | None = None
        self._again_at = clock()

    def told(self) -> Told | None:
        """None if a worker that lives has not answered yet."""
        with self._lock:
            if self._clock() >= self._again_at:
                self._ask()
                late = self._asked is not None
                self._again_at = self._clock() + (_LATE_SECONDS if late else _FRESH_SECONDS)
            return self._told

    def _ask(self) -> None:
        try:
            if self._asked is None:
                worker = self._worker()
                if worker is not self._of:  # whose networks have numbers of their own
                    self._of, self._told = worker, None
                self._asked = worker.ask("telemetry")
            facts, _ = self._asked.result(self._patience)
        except FutureTimeout:
            return
        except HeadraceError:
            self._of, self._asked, self._told = None, None, NOTHING
            return
        self._asked = None
        try:
            self._told = told_from_json(facts)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            _log.warning("a worker's counters cannot be read: %r", error)


def told_to_json(
    memory_bytes: Mapping[str, int], series: Mapping[int, Sequence[SeriesSnapshot]]
) -> dict[str, Any]:
    return {
        "memory": dict(memory_bytes),
        "series": [
            [number, [_series_to_json(each) for each in found]] for number, found in series.items()
        ],
    }


def told_from_json(facts: Mapping[str, Any]) -> Told:
    """
    Raises:
        ArithmeticError, AttributeError, LookupError, TypeError, ValueError: it is something else.
    """
    return Told(
        {str(device_id): int(size) for device_id, size in facts["memory"].items()},
        {int(number): tuple(map(_series_from_json, found)) for number, found in facts["series"]},
    )


def _series_to_json(series: SeriesSnapshot) -> list[Any]:
    family, value = series.family, series.value
    known = [family.name, family.kind, list(family.labels), family.help, list(family.bounds)]
    if isinstance(value, HistogramSnapshot):
        return [known, list(series.labels), list(value.counts), value.sum]
    return [known, list(series.labels), None, value]


def _series_from_json(facts: Sequence[Any]) -> SeriesSnapshot:
    (name, kind, labels, text, bounds), values, counts, total = facts
    if kind not in ("counter", "histogram") or len(values) != len(labels):
        raise ValueError(f"no series: {facts}")
    limits = tuple(map(float, bounds))
    family = Family(str(name), kind, tuple(map(str, labels)), str(text), limits)
    shown = tuple(map(str, values))
    if kind == "counter":
        return SeriesSnapshot(family, shown, float(total))
    if len(counts) != len(limits) + 1:
        raise ValueError(f"no histogram: {facts}")
    return SeriesSnapshot(
        family, shown, HistogramSnapshot(limits, tuple(map(int, counts)), float(total))
    )
