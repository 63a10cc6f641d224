"""What a status document says about devices and networks, since the start or since an earlier one.

The document's numbers count from the server's start. Here they become rates, means and quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

Document = Mapping[str, Any]

_REQUESTS: Final = ("completed", "failed", "cancelled", "expired")
_NOTHING: Final[Mapping[str, Any]] = {}


class Times(NamedTuple):
    """Durations in seconds. None if nothing was measured."""

    mean: float | None
    p50: float | None
    p99: float | None


class DeviceFigures(NamedTuple):
    """
    Attributes:
        busy, streams, queued, capacity: now. None if the device has not started yet.
        rate, failures: requests and parts a second that have ended, and that have not completed
            well or were refused.
        wait, execution: in the queue, and on a stream.
    """

    name: str
    state: str
    reason: str
    busy: int | None
    streams: int | None
    queued: int | None
    capacity: int | None
    rate: float
    failures: float
    wait: Times
    execution: Times


class NetworkFigures(NamedTuple):
    """
    Attributes:
        name: with the version, if the network has others.
        in_flight: requests that have not ended.
        rate, failures: as those of a device.
        times: from acceptance to the end.
        notes: how many automatic changes its load made.
        memory_bytes: as in the document; 0 if it counts for no memory budget.
        idle_seconds: since it was used last; None if it was not, or the caller may not know.
        shadow: as in the document: what gets some of its requests too, and how the answers are.
            None without a shadow.
    """

    name: str
    device: str
    state: str
    reason: str
    in_flight: int
    rate: float
    failures: float
    times: Times
    notes: int
    memory_bytes: int = 0
    idle_seconds: float | None = None
    shadow: Document | None = None


class Figures(NamedTuple):
    """All figures of a server over some time.

    Attributes:
        seconds: how long the time was.
    """

    seconds: float
    devices: list[DeviceFigures]
    networks: list[NetworkFigures]


def figures(now: Document, before: Document | None = None) -> Figures:
    """The figures since `before`, or since the server's start.

    Args:
        before: an earlier document. It does not count if the server has restarted since.
    """
    if before is None or not same_start(now, before):
        before = _NOTHING
    server = now["server"]
    seconds = now["time"] - before["time"] if before else server["uptime_seconds"]
    seconds = max(seconds, 1e-3)
    bounds = now["bounds"]["seconds"]
    devices = _by(before.get("devices", ()), "name")
    networks = _by(before.get("networks", ()), "name", "version", "generation")
    versions: dict[str, int] = {}
    for network in now["networks"]:
        versions[network["name"]] = versions.get(network["name"], 0) + 1
    return Figures(
        seconds,
        [
            _device(each, devices.get((each["name"],), _NOTHING), seconds, bounds)
            for each in now["devices"]
        ],
        [
            _network(
                network,
                networks.get(
                    (network["name"], network["version"], network["generation"]), _NOTHING
                ),
                seconds,
                bounds,
                versions[network["name"]] > 1 or network["version"] != "1",
            )
            for network in now["networks"]
        ],
    )


def same_start(now: Document, before: Document) -> bool:
    """Whether both documents are from one run of one server."""
    return bool(now["server"]["started"] == before["server"]["started"])


def by_load(found: Figures) -> Figures:
    """The figures with the busiest devices and networks first. What is not up or ready comes before
    all others."""
    return found._replace(
        devices=sorted(found.devices, key=_device_load), networks=sorted(found.networks, key=_load)
    )


def quantile(share: float, bounds: list[float], counts: list[int]) -> float | None:
    """A quantile of a histogram, linear within a bucket, as Prometheus computes it.

    Args:
        bounds: the upper bounds of the buckets but the last, which has none.
        counts: how many values are in each bucket.

    Returns:
        None if there are no values. The last bound if the quantile is in the last bucket.
    """
    total = sum(counts)
    if not total:
        return None
    wanted, seen = share * total, 0
    for at, count in enumerate(counts[: len(bounds)]):
        if count and seen + count >= wanted:
            below = bounds[at - 1] if at else 0.0
            return below + (bounds[at] - below) * (wanted - seen) / count
        seen += count
    return bounds[-1] if bounds else None


def _device(now: Document, before: Document, seconds: float, bounds: list[float]) -> DeviceFigures:
    ended, failed = 0, sum(now["refused"].values()) - sum(before.get("refused", {}).values())
    for kind in ("requests", "parts"):
        each, bad = _ended(now[kind], before.get(kind, _NOTHING))
        ended, failed = ended + each, failed + bad
    return DeviceFigures(
        now["name"],
        now["state"],
        now["reason"],
        now["streams_busy"],
        now["streams"],
        now["queue_depth"],
        now["queue_capacity"],
        ended / seconds,
        max(failed, 0) / seconds,
        _times(now, before, "queue_wait_seconds", bounds),
        _times(now, before, "execution_seconds", bounds),
    )


def _network(
    now: Document, before: Document, seconds: float, bounds: list[float], versioned: bool
) -> NetworkFigures:
    ended, failed = _ended(now["requests"], before.get("requests", _NOTHING))
    return NetworkFigures(
        f"{now['name']}:{now['version']}" if versioned else now["name"],
        now["device"],
        now["state"],
        now["reason"],
        now["in_flight"],
        ended / seconds,
        failed / seconds,
        _times(now, before, "request_seconds", bounds),
        len(now["notes"]) + now["notes_left_out"],
        now.get("memory_bytes", 0),
        now.get("idle_seconds"),
        now.get("shadow"),
    )


def _ended(now: Document, before: Document) -> tuple[int, int]:
    """How many requests have ended, and how many of them failed or expired."""
    change = {outcome: max(now[outcome] - before.get(outcome, 0), 0) for outcome in _REQUESTS}
    return sum(change.values()), change["failed"] + change["expired"]


def _times(now: Document, before: Document, name: str, bounds: list[float]) -> Times:
    new, old = now[name], before.get(name) or {"count": 0, "sum": 0.0, "counts": []}
    earlier = [*old["counts"], *[0] * (len(new["counts"]) - len(old["counts"]))]
    counts = [max(a - b, 0) for a, b in zip(new["counts"], earlier, strict=False)]
    count = new["count"] - old["count"]
    mean = (new["sum"] - old["sum"]) / count if count > 0 else None
    return Times(mean, quantile(0.5, bounds, counts), quantile(0.99, bounds, counts))


def _by(rows: Iterable[Document], *keys: str) -> dict[tuple[Any, ...], Document]:
    return {tuple(row[key] for key in keys): row for row in rows}


def _device_load(each: DeviceFigures) -> tuple[Any, ...]:
    broken = each.state in ("DOWN", "RESTARTING")
    filled = (each.queued or 0) / (each.capacity or math.inf)
    return not broken, -filled, -(each.busy or 0) / (each.streams or 1), -each.rate, each.name


def _load(each: NetworkFigures) -> tuple[Any, ...]:
    return each.state in ("ready", "known", "evicted"), -each.rate, -each.in_flight, each.name
