"""A network that several devices serve."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Final

from headrace.plugins.multi.config import PRIORITIES
from headrace.plugins.multi.contest import DeviceSpeed, to_texts
from headrace.plugins.multi.loading import DeviceNetwork, export
from headrace.plugins.multi.measuring import Measuring
from headrace.plugins.multi.members import PoolMembers
from headrace.plugins.multi.running.counters import MemberCounters
from headrace.plugins.multi.running.pool import DevicePool
from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.config.standard_keys import (
    ALLOW_AUTO_BATCHING,
    CACHE_DIR,
    INFERENCE_NUM_THREADS,
    NUM_STREAMS,
)
from headrace.runtime.device.executable_network import ExecutableNetwork, Place
from headrace.runtime.execution.job import Delegation
from headrace.runtime.execution.ports import PortCheck
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.network.network import Layer
from headrace.runtime.virtual.networks import execution_devices, optimal_requests, showing

_CHOSEN: Final = (NUM_STREAMS, INFERENCE_NUM_THREADS, ALLOW_AUTO_BATCHING)


class PooledNetwork(ExecutableNetwork):
    """Owns no streams: each request runs on the streams of the device that gets it.

    With MULTI you can set MULTI_DEVICE_PRIORITIES to give the devices another order or other limits
    while the network runs.

    Thread-safe: `_lock` guards the notes and changes of the configuration.
    """

    delegates = True

    def __init__(self, members: PoolMembers, config: Configuration) -> None:
        first, policy = members.all()[0].executable, members.policy
        super().__init__(first.network, config)
        # Each device has preprocessed and transformed the network by itself.
        self.inputs, self.outputs = first.inputs, first.outputs
        self._lock = threading.Lock()
        self._members = members
        self._unfollow: Callable[[], object] | None = None
        self._measuring: Measuring | None = None
        if len(policy.measured) > 1 and members.services.loads is not None:
            self._measuring = Measuring(
                members, self.inputs, self._request_shapes, config[CACHE_DIR], self._note
            )

    @property
    def pool(self) -> DevicePool:
        return self._members.pool

    def open(self, place: Place) -> None:
        super().open(place)
        self._members.open(place, delegate=self._delegate, note=self._note, changed=self._show)
        self._start = self.pool.submit
        self._unfollow = self._members.services.executors.subscribe(self.pool.follow)

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self._members.count_with(f"network {name!r}", MemberCounters(counters.series))
        if self._measuring is not None:
            self._measuring.begin(name)

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Changes the devices' keys too, and the keys of later loads.

        Raises:
            As `PoolMembers.order_of` and `ExecutableNetwork.set_config`.
        """
        self.config.changed(changes)  # raises before anything is changed
        text = changes.get(PRIORITIES.name)
        order = {} if text is None else self._members.order_of(text)
        with self._lock:
            super().set_config(changes)
        self._members.set_config(changes, order)

    # -- hooks --

    def _close(self) -> None:
        measuring, self._measuring = self._measuring, None  # they refer to each other
        if measuring is not None:
            measuring.close()
        if self._unfollow is not None:
            self._unfollow()
        self._members.close()

    def _export(self) -> bytes:
        """What all devices export, or what the one that serves does, if one is chosen."""
        return export(self._members.all() if self._members.policy.all_of_them else [self._front()])

    def _layers(self) -> tuple[Layer, ...]:
        """The layers of every device. Each device has made its own graph of the network."""
        return tuple(
            layer for member in self._members.all() for layer in member.executable.layers()
        )

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {
            **({} if self._members.policy.all_of_them else {"CANDIDATES": self._rows}),
            "DEVICE_STATES": lambda: _lines(self._members.states()),
            "DEVICE_REQUESTS": self._completed,
            "NUMBER_OF_WAITING_INFER_REQUESTS": lambda: self.pool.waiting,
            "NUMBER_OF_EXEC_INFER_REQUESTS": lambda: self.pool.running,
        }

    def _optimal_number_of_infer_requests(self) -> int:
        """The number of requests that the serving devices together run at once."""
        serving = self._serving()
        return sum(
            self._members.counts[each.name] or optimal_requests(each.executable) for each in serving
        )

    def _execution_devices(self) -> list[str]:
        return execution_devices(member.executable for member in self._serving())

    def works(self, up: Mapping[str, bool]) -> bool:
        """One device that is up serves for all."""
        return any(up.get(device, True) for device in self._execution_devices())

    def _delegate(self, delegation: Delegation | None) -> None:
        self._delegation = delegation

    # -- inside --

    def _note(self, start: str, *notes: str) -> None:
        """Adds notes in the place of those that begin so."""
        with self._lock:
            self.notes = (*(each for each in self.notes if not each.startswith(start)), *notes)

    def _show(self) -> None:
        """Shows in the configuration the present order with default numbers, or the values that the
        serving device has chosen. Lets requests give what a member can replace: others refuse such
        a request, which is then the member's."""
        with self._lock:
            if PRIORITIES in self.config:
                shown = ",".join(starmap(_listed, self._members.order().items()))
                self.config = self.config.changed({PRIORITIES.name: shown})
            else:
                self.config = showing(self.config, self._front().executable, _CHOSEN)
            networks = [member.executable for member in self._members.all()]
            self.loaded_from_cache |= any(network.loaded_from_cache for network in networks)
            defaults = {port.name: port for network in networks for port in network.defaults}
            self.defaults = tuple(defaults.values())
            self._check = PortCheck(self.inputs, self.outputs, self.defaults)

    def _completed(self) -> list[str]:
        self.place.counters.sort()
        return _lines(self.pool.completed())

    def _rows(self) -> list[str]:
        """The metric CANDIDATES."""
        measuring, front = self._measuring, self._front().name
        known = {row.device: row for row in (measuring.rows() if measuring is not None else ())}
        rows = (
            known.get(name) or DeviceSpeed(name, why="it is not measured")
            for name in self._members.candidates
        )
        return to_texts([replace(row, chosen=row.device == front) for row in rows])

    def _front(self) -> DeviceNetwork:
        """The first serving device, or the preferred device if none serves."""
        return (*self.pool.serving, *self.pool.members)[0]

    def _serving(self) -> Sequence[DeviceNetwork]:
        """The devices that get requests now. Without spilling, only the first serving one does."""
        serving = self.pool.serving or self.pool.members
        return serving if self._members.policy.spill else serving[:1]


def _lines(table: Mapping[str, object]) -> list[str]:
    return [f"{device}={what}" for device, what in table.items()]


def _listed(device: str, count: int | None) -> str:
    """The device and its number as they are written in a device name."""
    name = f"[{device}]" if ":" in device else device
    return name if count is None else f"{name}({count})"
