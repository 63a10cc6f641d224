"""Converts what a worker has counted to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.runtime.metrics.histogram import HistogramSnapshot
from headrace.runtime.metrics.series import Family, SeriesSnapshot
from headrace.runtime.network.graph import RunningShape


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """
    Attributes:
        memory_bytes: the bytes that networks hold, by device id.
        series: the plugin's own series, by the network's number in the worker.
        shapes: as `ExecutableNetwork.shapes`, by that number.
    """

    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    series: Mapping[int, tuple[SeriesSnapshot, ...]] = field(default_factory=dict)
    shapes: Mapping[int, tuple[RunningShape, ...]] = field(default_factory=dict)


def counts_to_json(
    memory_bytes: Mapping[str, int],
    series: Mapping[int, Sequence[SeriesSnapshot]],
    shapes: Mapping[int, Sequence[RunningShape]],
) -> dict[str, Any]:
    return {
        "memory": dict(memory_bytes),
        "series": [
            [number, [_series_to_json(each) for each in found]] for number, found in series.items()
        ],
        "shapes": [[number, list(found)] for number, found in shapes.items() if found],
    }


def counts_from_json(facts: Mapping[str, Any]) -> WorkerCounts:
    """
    Raises:
        ArithmeticError, AttributeError, LookupError, TypeError, ValueError: `facts` does not have
            the expected form.
    """
    return WorkerCounts(
        {str(device_id): int(size) for device_id, size in facts["memory"].items()},
        {int(number): tuple(map(_series_from_json, found)) for number, found in facts["series"]},
        {int(number): tuple(map(_shape_from_json, found)) for number, found in facts["shapes"]},
    )


def _shape_from_json(facts: Sequence[Any]) -> RunningShape:
    shape, device, reason, size = facts
    return RunningShape(str(shape), str(device), str(reason), int(size))


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
