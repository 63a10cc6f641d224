"""How many replicas a cluster needs, from the time that requests wait for a device.

Serve asks each replica for `LoadMeter.read`, and calls `by_waiting_time` with all answers.
It applies its own delays and bounds to the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from headrace.runtime.metrics.families import (
    DEVICE_QUEUE_WAIT_SECONDS,
    DEVICE_STREAMS,
    DEVICE_STREAMS_BUSY,
)
from headrace.runtime.metrics.histogram import HistogramSnapshot
from headrace.runtime.metrics.series import SeriesSnapshot

WAITING: Final = "waiting_seconds"
BUSY: Final = "busy"

TARGET_SECONDS: Final = 0.010
"""The mean time that a request may wait for a device."""

TARGET_BUSY: Final = 0.7
"""The part of the devices' streams that may be busy on average."""

_MOST_AT_ONCE: Final = 2.0  # a burst that waits for seconds does not ask for hundreds of replicas


class LoadMeter:
    """Measures a replica between two readings. Not thread-safe."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0

    def read(self, series: Iterable[SeriesSnapshot]) -> dict[str, float]:
        """
        Args:
            series: the counters of all devices.

        Returns:
            The mean waiting time of the requests since the last reading, in seconds, and the part
            of the streams that is busy now.
        """
        waits: list[HistogramSnapshot] = []
        streams = busy = 0.0
        for sample in series:
            value = sample.value
            if isinstance(value, HistogramSnapshot):
                if sample.family is DEVICE_QUEUE_WAIT_SECONDS:
                    waits.append(value)
            elif sample.family is DEVICE_STREAMS:
                streams += value
            elif sample.family is DEVICE_STREAMS_BUSY:
                busy += value
        count, total = sum(wait.count for wait in waits), sum(wait.sum for wait in waits)
        new, waited = count - self._count, total - self._sum
        self._count, self._sum = count, total
        mean = waited / new if new > 0 else 0.0
        return {WAITING: max(mean, 0.0), BUSY: busy / streams if streams else 0.0}


class AutoscalingContext(Protocol):
    """What `by_waiting_time` takes of Serve's AutoscalingContext."""

    @property
    def current_num_replicas(self) -> int: ...

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...


def by_waiting_time(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Serve's autoscaling policy: the replicas that the cluster needs, and no state of its own."""
    metrics = context.aggregated_metrics or {}
    waiting = list(metrics.get(WAITING, {}).values())
    busy = list(metrics.get(BUSY, {}).values())
    return wanted(context.current_num_replicas, waiting, busy), {}


def wanted(replicas: int, waiting: Iterable[float], busy: Iterable[float]) -> int:
    """The replicas that the cluster needs.

    Requests that wait too long ask for more replicas. Replicas leave when the others would be busy
    no more than `TARGET_BUSY` with all the work.

    Args:
        waiting, busy: what each replica has measured.
    """
    late = _mean(waiting) / TARGET_SECONDS
    if late > 1.0:
        return math.ceil(replicas * min(late, _MOST_AT_ONCE))
    needed = math.ceil(replicas * _mean(busy) / TARGET_BUSY - 1e-9)
    return max(1, min(needed, replicas))


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
