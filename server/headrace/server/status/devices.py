"""The devices in the status document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from headrace.runtime.core import Core
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.state import DeviceEvent, DeviceState
from headrace.runtime.errors import HeadraceError
from headrace.runtime.metrics import families
from headrace.runtime.metrics.series import SeriesSnapshot
from headrace.server.status.numbers import NO_NUMBERS, Numbers, grouped, summed

NOT_INSTALLED: Final = "NOT_INSTALLED"
_UP: Final = DeviceEvent("", DeviceState.UP)


def device_rows(
    core: Core, series: Iterable[SeriesSnapshot], *, full: bool
) -> Iterator[dict[str, Any]]:
    """One row for each device, under its name in the metrics. A device that did not start has one
    row under its type.

    Starts no backend: a device that is not in use yet is shown with what is known without it.

    Args:
        full: as `PluginRegistry.reasons`.
    """
    numbers = grouped(series, "device")
    plugins, reasons = core.plugins.plugins(), core.plugins.reasons(full=full)
    missing = core.plugins.not_installed()
    for kind in core.plugins.names():
        plugin = plugins.get(kind)
        of_type = core.states.get(kind) or _UP
        for at, name in enumerate(plugin.names() if plugin is not None else [kind]):
            event = core.states.get(name) or of_type
            event = event if of_type.state is DeviceState.UP else of_type
            own = numbers.get((name,), NO_NUMBERS)
            yield {
                "name": name,
                "type": kind,
                "state": NOT_INSTALLED if kind in missing else event.state.value,
                "reason": reasons.get(kind, event.reason),
                "full_name": _full_name(plugin, own) if at == 0 and plugin is not None else "",
                "backend_version": plugin.backend_version if plugin is not None else "",
                **_numbers(own),
            }


def _full_name(plugin: Plugin, own: Numbers) -> str:
    """The name of the type's default device.

    A device has a queue once its backend has started. Before that, the question would start it.
    """
    if families.DEVICE_QUEUE_CAPACITY not in own:
        return ""
    with suppress(HeadraceError):
        return plugin.full_name
    return ""


def _numbers(own: Numbers) -> dict[str, Any]:
    return {
        "streams": own.number(families.DEVICE_STREAMS),
        "streams_busy": own.number(families.DEVICE_STREAMS_BUSY),
        "queue_depth": own.number(families.DEVICE_QUEUE_DEPTH),
        "queue_capacity": own.number(families.DEVICE_QUEUE_CAPACITY),
        "memory_bytes": own.number(families.DEVICE_MEMORY_BYTES),
        "outages": own.number(families.DEVICE_OUTAGES),
        "accepted": own.total(families.DEVICE_ACCEPTED, kind="request"),
        "requests": own.outcomes(families.DEVICE_REQUESTS, kind="request"),
        "parts": own.outcomes(families.DEVICE_REQUESTS, kind="part"),
        "refused": summed(own.of(families.DEVICE_REFUSED), families.DEVICE_REFUSED, "reason"),
        "queue_wait_seconds": own.histogram(families.DEVICE_QUEUE_WAIT_SECONDS),
        "execution_seconds": own.histogram(families.DEVICE_EXECUTION_SECONDS),
    }
