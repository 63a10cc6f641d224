"""What the runtime offers to plugins, and what a caller may ask for when a network is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headrace.runtime.counters import Counters
from headrace.runtime.device_state import DeviceStates
from headrace.runtime.executor_manager import ExecutorManager
from headrace.runtime.preprocessing import InputOptions, OutputOptions
from headrace.runtime.timer import Timer

if TYPE_CHECKING:
    from headrace.runtime.plugin import Plugin


class Devices(Protocol):
    """The other devices, for one that delegates to them."""

    def plugin(self, device: str) -> Plugin:
        """The plugin of a device type, as ``CPU``.

        Raises:
            NotFound, Unavailable: there is none, or it did not start.
        """


@dataclass(frozen=True, slots=True)
class Services:
    """What the runtime offers to plugins."""

    executors: ExecutorManager
    timer: Timer
    counters: Counters
    states: DeviceStates
    devices: Devices


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How the caller wants to see the network: preprocessing, types, layouts, placement."""

    inputs: Mapping[str, InputOptions] = field(default_factory=dict)
    outputs: Mapping[str, OutputOptions] = field(default_factory=dict)
    affinities: Mapping[str, str] = field(default_factory=dict)
