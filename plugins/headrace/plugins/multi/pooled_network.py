"""A network that several devices serve. MULTI's and AUTO's networks are made from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.plugins.multi.counters import MemberCounters
from headrace.plugins.multi.device_list import Candidate, Failure
from headrace.plugins.multi.late_loads import LateLoads
from headrace.plugins.multi.loading import Member, ports_of
from headrace.plugins.multi.pool import Pool
from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.device.executable_network import ExecutableNetwork, Place
from headrace.runtime.device.services import Services
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.ports import PortCheck
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.network.network import Layer, Network
from headrace.runtime.virtual.networks import execution_devices, set_known


class PooledNetwork(ExecutableNetwork):
    """Owns no streams: each request runs on the streams of the device that gets it. Thread-safe:
    `_lock` guards the members and changes of the configuration.

    Args:
        original: the network as the caller gave it, for later loads.
        candidates: the devices that may serve it.
        members: the devices that have loaded it, the preferred one first. They are closed with the
            network.
        failures: of the devices that have not loaded it.
        spill: as for `Schedule`.
    """

    def __init__(
        self,
        original: Network,
        candidates: Sequence[Candidate],
        members: Sequence[Member],
        failures: Sequence[Failure],
        config: Configuration,
        services: Services,
        *,
        spill: bool,
    ) -> None:
        first = members[0].executable
        super().__init__(first.network, config)
        # Each device has preprocessed and transformed the network by itself.
        self.inputs, self.outputs = first.inputs, first.outputs
        self.defaults = first.defaults if len(candidates) == 1 else ()  # others may take none
        self._check = PortCheck(self.inputs, self.outputs, self.defaults)
        self.label = ""
        self._executors = services.executors
        self._states = services.states
        self._spill = spill
        self._lock = threading.Lock()
        self._members = {each.name: each for each in members}
        self._late = LateLoads(original, candidates, ports_of(first), failures, services, self)
        self._counters = MemberCounters()
        self._pool: Pool | None = None
        self._unfollow: Callable[[], None] = lambda: None

    @property
    def pool(self) -> Pool:
        assert self._pool is not None, "the network is not open"
        return self._pool

    def open(self, place: Place) -> None:
        super().open(place)
        self.label = place.device
        self._pool = Pool(
            place.device,
            list(self._members.values()),
            place.timer,
            self._states,
            spill=self._spill,
            changed=self._members_changed,
        )
        self._unfollow = self._executors.subscribe(self._follow_streams)
        self._late.open()

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self.label, self._counters = f"network {name!r}", MemberCounters(counters.series)
        for device in self._late.failures:
            self._counters.not_loaded(device)
        self.pool.count_with(self.label, self._counters)

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Changes the devices' keys too, and the keys of later loads."""
        self.config.changed(changes)  # raises before anything is changed
        self._late.remember(changes)
        with self._lock:
            super().set_config(changes)
        for member in self._loaded():
            set_known(member.executable, changes)

    # -- loads while it serves --

    def has(self, device: str) -> bool:
        """As `late_loads.Owner`."""
        with self._lock:
            return device in self._members

    def adopt(self, member: Member, notes: Sequence[str]) -> None:
        """As `late_loads.Owner`."""
        with self._lock:
            self._members[member.name] = member
        self.loaded_from_cache |= member.executable.loaded_from_cache
        self.notes = (*self._notes_without(member.name), *notes)

    def is_loaded(self, device: str) -> None:
        """As `late_loads.Owner`."""

    def has_failed(self, failure: Failure) -> None:
        """As `late_loads.Owner`."""
        self._counters.not_loaded(failure.device)
        self.notes = (*self._notes_without(failure.device), str(failure))

    def try_again(self, device: str) -> None:
        """As `late_loads.Owner`."""
        self._late.start(device)

    def _notes_without(self, device: str) -> Iterable[str]:
        """The notes without those about the failure of this device."""
        start = Failure.said_of(device)
        return [note for note in self.notes if not note.startswith(start)]

    # -- hooks --

    def _start(self, job: Job) -> None:
        self.pool.submit(job)

    def _close(self) -> None:
        self._late.close()
        self._unfollow()
        if self._pool is not None:
            self._pool.close()
        for member in self._loaded():
            member.executable.close()

    def _layers(self) -> tuple[Layer, ...]:
        """The layers of every device. Each device has made its own graph of the network."""
        return tuple(layer for each in self._loaded() for layer in each.executable.layers())

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {
            "DEVICE_STATES": self._states_of_all,
            "DEVICE_REQUESTS": lambda: _lines(self.pool.completed()),
            "NUMBER_OF_WAITING_INFER_REQUESTS": lambda: self.pool.waiting,
            "NUMBER_OF_EXEC_INFER_REQUESTS": lambda: self.pool.running,
        }

    def _optimal_number_of_infer_requests(self) -> int:
        """The number of requests that the serving devices together run at once."""
        limits = self.pool.limits()
        return max(1, sum(limits[each.name] for each in self.pool.serving if each.name in limits))

    def _execution_devices(self) -> list[str]:
        serving = self.pool.serving or self.pool.members
        return execution_devices(each.executable for each in serving)

    def _states_of_all(self) -> list[str]:
        """The states of all devices, including devices that have not loaded the network."""
        failures = self._late.failures
        failed = {name: f"failed: {each.reason}" for name, each in failures.items()}
        return _lines({**self.pool.standings(), **self._not_loaded(), **failed})

    def _not_loaded(self) -> Mapping[str, str]:
        """The states of devices that have neither loaded the network nor failed to."""
        return {}

    def _loaded(self) -> Sequence[Member]:
        """All members, including members that are not in the list."""
        with self._lock:
            return [*self._members.values()]

    def _members_changed(self) -> None:
        """Called when a member was taken out or put back, or takes another number of requests."""

    def _follow_streams(self) -> None:
        self.pool.follow()


def _lines(table: Mapping[str, object]) -> list[str]:
    return [f"{device}={what}" for device, what in table.items()]
