"""The networks in the status document, as far as the caller sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.loading.entry import NetworkEntry, NetworkState
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.loading.shadows.shadow import OUTCOMES, Shadow
from headrace.runtime.metrics import families
from headrace.runtime.metrics.families import FAMILIES
from headrace.runtime.metrics.series import SeriesSnapshot
from headrace.runtime.network.graph import RunningSubgraph
from headrace.server.access.networks import Networks
from headrace.server.status.numbers import NO_NUMBERS, Numbers, as_json, grouped, short

MAX_NETWORKS: Final = 200
"""How many networks one document has."""
MAX_NOTES: Final = 20
MAX_SUBGRAPHS: Final = 32
"""How many subgraphs of a network one document has. The metrics tell as many apart."""
MAX_SHAPES: Final = 32
"""How many shapes of a network one document has."""
MAX_SERIES: Final = 80
"""How many series of a device's own one document has for each network."""

_TEXT: Final = 500
_NAME: Final = 100
_COMMON: Final = frozenset(family.name for family in FAMILIES)
_ORDER: Final = (
    NetworkState.FAILED,
    NetworkState.LOADING,
    NetworkState.DRAINING,
    NetworkState.READY,
    NetworkState.EVICTED,
    NetworkState.KNOWN,
)


def network_rows(
    networks: Networks,
    registry: NetworkRegistry,
    shadow: Callable[[str], Shadow],
    series: Iterable[SeriesSnapshot],
    match: str,
) -> dict[str, Any]:
    """The networks that the caller sees: first those that are not ready, then the others by name.

    Args:
        shadow: the shadow of the network with a full name.
        match: a part of the names to list. "" lists all.
    """
    entries = sorted(
        (
            (_ORDER.index(each.state), networks.shown(each.key.name), int(each.key.version), each)
            for each in networks.entries()
        ),
        key=lambda row: row[:3],
    )
    chosen = [row for row in entries if match in row[1]]
    listed = chosen[:MAX_NETWORKS]
    series = list(series)
    compared = grouped(
        (sample for sample in series if sample.family is families.SHADOW_REQUESTS), "network"
    )
    series = [sample for sample in series if sample.family.labels[:2] == ("network", "version")]
    common = grouped(
        (sample for sample in series if sample.family.name in _COMMON),
        "network",
        "version",
        "device",
    )
    own = grouped(
        (sample for sample in series if sample.family.name not in _COMMON), "network", "version"
    )
    rows = []
    for _, shown, _, entry in reversed(listed):  # so that a network that drains comes last
        name, version, _ = entry.key
        shares = registry.serving(name)
        rows.append(
            {
                "name": shown,
                # It would tell tenants what others ask for.
                "idle_seconds": entry.idle_seconds if networks.manages(name) else None,
                **_about(entry, shares.get(version, 0)),
                # A network and its replacement share their counters.
                **_numbers(common.pop((name, version, _device(entry)), NO_NUMBERS)),
                **_subgraphs(entry.executable),
                **_shapes(entry.executable),
                "shadow": _shadow(shadow(name), version, compared.get((name,), NO_NUMBERS)),
                "series": _series(own.pop((name, version), NO_NUMBERS)),
            }
        )
    return {
        "networks": rows[::-1],
        "networks_total": len(entries),
        "networks_left_out": len(chosen) - len(listed),
    }


def _device(entry: NetworkEntry) -> str:
    """The device as the metrics name it."""
    return entry.executable.place.device if entry.executable is not None else ""


def _about(entry: NetworkEntry, share: int) -> dict[str, Any]:
    executable = entry.executable
    notes = executable.notes if executable is not None else ()
    devices = executable.get_metric("EXECUTION_DEVICES") if executable is not None else []
    return {
        "version": entry.key.version,
        "device": entry.device,
        "execution_devices": devices,
        "state": entry.state.value,
        "reason": short(entry.reason, _TEXT),
        "origin": entry.record.request.origin if entry.record is not None else "",
        "generation": entry.key.generation,
        "share": share,
        "from_cache": executable is not None and executable.loaded_from_cache,
        "load_seconds": entry.load_seconds,
        "memory_bytes": entry.memory_bytes,
        "notes": [short(note, _TEXT) for note in notes[:MAX_NOTES]],
        "notes_left_out": max(0, len(notes) - MAX_NOTES),
    }


def _numbers(own: Numbers) -> dict[str, Any]:
    accepted = own.total(families.NETWORK_ACCEPTED)
    outcomes = own.outcomes(families.NETWORK_REQUESTS)
    return {
        "accepted": accepted,
        "in_flight": max(0, accepted - sum(outcomes.values())),
        "requests": outcomes,
        "request_seconds": own.histogram(families.NETWORK_REQUEST_SECONDS),
        "batch_size": own.histogram(families.NETWORK_BATCH_SIZE),
    }


def _subgraphs(executable: ExecutableNetwork | None) -> dict[str, Any]:
    subgraphs = executable.subgraphs() if executable is not None else ()
    return {
        "subgraphs": [_subgraph(subgraph) for subgraph in subgraphs[:MAX_SUBGRAPHS]],
        "subgraphs_left_out": max(0, len(subgraphs) - MAX_SUBGRAPHS),
    }


def _subgraph(subgraph: RunningSubgraph) -> dict[str, Any]:
    layers = subgraph.layers
    return {
        "number": subgraph.number,
        "device": subgraph.device,
        "step": short(subgraph.step, _NAME),
        "layers": len(layers),
        "first": short(layers[0], _NAME) if layers else "",
        "last": short(layers[-1], _NAME) if layers else "",
        "reads": [
            {"from": number, "tensors": tensors} for number, tensors in subgraph.reads.items()
        ][:MAX_SUBGRAPHS],
    }


def _shapes(executable: ExecutableNetwork | None) -> dict[str, Any]:
    found = executable.shapes() if executable is not None else ()
    return {
        "shapes": [
            {
                "shape": short(shape.shape, _NAME),
                "device": shape.device,
                "reason": short(shape.reason, _TEXT),
                "memory_bytes": shape.memory_bytes,
            }
            for shape in found[:MAX_SHAPES]
        ],
        "shapes_left_out": max(0, len(found) - MAX_SHAPES),
    }


def _shadow(shadow: Shadow, version: str, compared: Numbers) -> dict[str, Any] | None:
    """What also gets requests to a version of a network, and how its answers are."""
    if not shadow.percent or shadow.version == version:
        return None
    counts = {
        outcome: compared.total(families.SHADOW_REQUESTS, outcome=outcome) for outcome in OUTCOMES
    }
    return {**shadow._asdict(), "requests": counts}


def _series(own: Numbers) -> list[dict[str, Any]]:
    """The series that only some devices count, as HETERO for its subgraphs."""
    return [
        {
            "name": sample.family.name,
            "labels": dict(zip(sample.family.labels[2:], sample.labels[2:], strict=True)),
            "value": as_json(sample.value),
        }
        for sample in islice(own.all(), MAX_SERIES)
    ]
