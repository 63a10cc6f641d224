"""A network on several devices. Each request runs on the device that is free first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.plugins.multi.config import PRIORITIES
from headrace.plugins.multi.device_list import Candidate, Failure, read_priorities
from headrace.plugins.multi.loading import Member, export
from headrace.plugins.multi.pooled_network import PooledNetwork
from headrace.runtime.config.device_name import Member as ListedDevice
from headrace.runtime.config.key import config_field
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import Place
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition, NotFound
from headrace.runtime.network.network import Network


class MultiNetwork(PooledNetwork):
    """You can set MULTI_DEVICE_PRIORITIES to give the devices another order or other limits while
    the network runs. A device that failed to load the network keeps its place in the order, and
    takes that place once it has loaded the network.

    Thread-safe: `_lock` guards the order, too.

    Args:
        as for `PooledNetwork`; the order is that of the candidates.
    """

    def __init__(
        self,
        original: Network,
        candidates: Sequence[Candidate],
        members: Sequence[Member],
        failures: Sequence[Failure],
        config: Configuration,
        services: Services,
    ) -> None:
        super().__init__(original, candidates, members, failures, config, services, spill=True)
        self._devices = services.devices
        self._candidates = frozenset(each.name for each in candidates)
        self._order = {each.name: each.count for each in candidates}

    def open(self, place: Place) -> None:
        super().open(place)
        with self._lock:
            gone = [n for n in self._order if n not in self._members and not self._late.will_ask(n)]
            for name in gone:
                del self._order[name]
        self._show()

    def set_config(self, changes: Mapping[str, str]) -> None:
        """
        Raises:
            NotFound: MULTI_DEVICE_PRIORITIES lists a device that was not in the list of the load,
                or that does not support the network.
            FailedPrecondition: none of the devices that it lists has loaded the network yet.
            As `ExecutableNetwork.set_config`.
        """
        order: dict[str, int | None] = {}
        if PRIORITIES.name in changes:
            order = self._read(read_priorities(changes[PRIORITIES.name], self._devices.available()))
        super().set_config(changes)
        if order:
            with self._lock:
                left_out = [name for name in self._order if name not in order]
                self._order = order
                missing = [name for name in order if name not in self._members]
            for name in left_out:
                self._late.drop(name)
            for name in missing:
                self._late.want(name)
            self._arrange()

    # -- inside --

    def is_loaded(self, device: str) -> None:
        self._arrange()

    def _read(self, listed: Sequence[ListedDevice]) -> dict[str, int | None]:
        with self._lock:
            loaded = {*self._members}
        field = config_field(PRIORITIES.name)
        failures = self._late.failures
        known = {name for name in self._candidates if name in loaded or name in failures}
        order = {str(each.device): each.count for each in listed}
        for name in order:
            if name not in known:
                raise NotFound.unknown("device of this network", name, known, field=field)
        if not loaded & order.keys():
            reasons = "; ".join(str(failures[name]) for name in order if name in failures)
            raise FailedPrecondition(
                f"none of the devices has loaded the network; {reasons}", field=field
            )
        return order

    def _arrange(self) -> None:
        """Gives the pool the order, and repeats this until the order no longer changes. While the
        pool takes an order, a device may load the network, or a caller may set another order."""
        arranged, order = None, self._limits()
        while order != arranged:
            self.pool.arrange(order)
            arranged, order = order, self._limits()
        self._show()

    def _limits(self) -> list[tuple[Member, int | None]]:
        """The members in order, with the numbers of requests that the list gives."""
        with self._lock:
            return [
                (self._members[name], count)
                for name, count in self._order.items()
                if name in self._members
            ]

    def _members_changed(self) -> None:
        if self._pool is not None:
            self._show()

    def _show(self) -> None:
        """Writes the present order into the configuration, including default numbers."""
        limits = self.pool.limits()
        with self._lock:
            shown = ",".join(_listed(name, limits.get(name, n)) for name, n in self._order.items())
            self.config = self.config.changed({PRIORITIES.name: shown})

    def _export(self) -> bytes:
        return export(self._loaded())


def _listed(device: str, count: int | None) -> str:
    """The device and its number as they are written in a device name."""
    name = f"[{device}]" if ":" in device else device
    return name if count is None else f"{name}({count})"
