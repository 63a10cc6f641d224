"""What the runtime offers to plugins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.device.state import DeviceStates
from headrace.runtime.execution.executor_manager import ExecutorManager
from headrace.runtime.execution.timer import Timer
from headrace.runtime.metrics.counters import Counters

if TYPE_CHECKING:
    from headrace.runtime.device.plugin import Plugin


class Devices(Protocol):
    """The other devices, for one that delegates to them."""

    def plugin(self, device: str) -> Plugin:
        """The plugin of a device type, as ``CPU``.

        Raises:
            NotFound, Unavailable: there is none, or it did not start.
        """

    def available(self) -> Mapping[str, list[str]]:
        """Every device type with its AVAILABLE_DEVICES; one that did not start has none. Asked for
        the devices of a type, it may start its backend."""

    def reasons(self) -> dict[str, str]:
        """Device types that did not start, and why."""

    def not_installed(self) -> frozenset[str]:
        """Those that are not installed or have no hardware to run on."""


@dataclass(frozen=True, slots=True)
class Services:
    """What the runtime offers to plugins.

    Attributes:
        cache: of compiled networks; None if the server keeps none.
        folder: of the server's own, where no client and no other server writes; in it a device
            may make one of its name, for what it can do without. None if there is none.
    """

    executors: ExecutorManager
    timer: Timer
    counters: Counters
    states: DeviceStates
    devices: Devices
    cache: NetworkCache | None = None
    folder: Path | None = None
