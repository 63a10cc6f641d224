"""What was counted, at one moment: frozen, for whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.runtime.metrics.cache_counters import CacheSnapshot
from headrace.runtime.metrics.histogram import HistogramSnapshot
from headrace.runtime.metrics.series import SeriesSnapshot

Kind = Literal["request", "part"]

Gauge = Literal["queue_depth", "queue_capacity", "streams", "streams_busy", "memory_bytes"]


@dataclass(frozen=True, slots=True)
class RequestsSnapshot:
    """How many requests were accepted and how those that ended did."""

    accepted: int
    outcomes: Mapping[str, int]

    @property
    def in_flight(self) -> int:
        return self.accepted - sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class ExecutionSnapshot:
    """Requests or parts on a device, with their seconds in the queue and on the device."""

    requests: RequestsSnapshot
    queue_wait_seconds: HistogramSnapshot
    execution_seconds: HistogramSnapshot


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    device: str
    kinds: Mapping[Kind, ExecutionSnapshot]
    refused: Mapping[str, int]
    gauges: Mapping[Gauge, float]


@dataclass(frozen=True, slots=True)
class NetworkSnapshot:
    network: str
    device: str
    requests: RequestsSnapshot
    request_seconds: HistogramSnapshot
    load_seconds: HistogramSnapshot
    batch_size: HistogramSnapshot
    series: tuple[SeriesSnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything counted, `grpc` by (method, code), `http` by (path, status); `cache` is None where
    there is none."""

    devices: tuple[DeviceSnapshot, ...]
    networks: tuple[NetworkSnapshot, ...]
    grpc: Mapping[tuple[str, str], int]
    cache: CacheSnapshot | None = None
    http: Mapping[tuple[str, str], int] = field(default_factory=dict)
