"""A network that several devices serve, each with all of it: what MULTI's and AUTO's share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.plugins.multi.counters import MemberCounters
from headrace.plugins.multi.member import Member
from headrace.plugins.multi.pool import Pool
from headrace.runtime.config import Configuration, ParameterValue
from headrace.runtime.counters import NetworkCounters
from headrace.runtime.device_state import DeviceStates
from headrace.runtime.executable_network import ExecutableNetwork, Place
from headrace.runtime.job import Job
from headrace.runtime.network import Layer
from headrace.runtime.ports import PortCheck


class PooledNetwork(ExecutableNetwork):
    """Owns no streams: each request runs on those of the device that it is given to.

    Args:
        members: the preferred device first; closed with the network.
        states: tells which devices are up.
        spill: as of `Schedule`.
    """

    def __init__(
        self,
        members: Sequence[Member],
        config: Configuration,
        states: DeviceStates,
        *,
        spill: bool,
    ) -> None:
        first = members[0].executable
        super().__init__(first.network, config)
        # Each device has preprocessed and transformed the network by itself.
        self.inputs, self.outputs = first.inputs, first.outputs
        self._check = PortCheck(self.inputs, self.outputs)
        self.loaded_from_cache = any(each.executable.loaded_from_cache for each in members)
        self._states = states
        self._spill = spill
        self._given = tuple(members)
        self._pool: Pool | None = None

    @property
    def pool(self) -> Pool:
        assert self._pool is not None, "the network is not open"
        return self._pool

    def open(self, place: Place) -> None:
        super().open(place)
        self._pool = Pool(
            place.device,
            self._given,
            place.timer,
            self._states,
            spill=self._spill,
            changed=self._members_changed,
        )

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self.pool.count_with(f"network {name!r}", MemberCounters(counters.series))

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Changes the devices' keys too."""
        super().set_config(changes)
        for member in self._loaded():
            known = member.executable.config.schema
            own = {key: changes[key] for key in changes if key in known}
            if own:
                member.executable.set_config(own)

    # -- hooks --

    def _start(self, job: Job) -> None:
        self.pool.submit(job)

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        for member in self._loaded():
            member.executable.close()

    def _layers(self) -> tuple[Layer, ...]:
        """Those of every device: each has made a graph of its own of the network."""
        return tuple(layer for each in self._loaded() for layer in each.executable.layers())

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {
            "DEVICE_STATES": lambda: _lines(self.pool.standings()),
            "DEVICE_REQUESTS": lambda: _lines(self.pool.completed()),
            "NUMBER_OF_WAITING_INFER_REQUESTS": lambda: self.pool.waiting,
            "NUMBER_OF_EXEC_INFER_REQUESTS": lambda: self.pool.running,
        }

    def _optimal_number_of_infer_requests(self) -> int:
        """As many as the devices that serve run at once."""
        limits = self.pool.limits()
        return max(1, sum(limits[each.name] for each in self.pool.serving if each.name in limits))

    def _execution_devices(self) -> list[str]:
        serving = self.pool.serving or self.pool.members
        return list(dict.fromkeys(name for each in serving for name in each.execution_devices()))

    def _loaded(self) -> Sequence[Member]:
        """All members, those without a place in the list included."""
        return self._given

    def _members_changed(self) -> None:
        """A member was taken out or put back."""


def _lines(table: Mapping[str, object]) -> list[str]:
    return [f"{device}={what}" for device, what in table.items()]
