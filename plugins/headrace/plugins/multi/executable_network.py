"""A network on several devices, each request on whichever is free first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.plugins.multi.config import PRIORITIES
from headrace.plugins.multi.container import Frame, write
from headrace.plugins.multi.lists import read_list
from headrace.plugins.multi.member import Member, optimal_requests
from headrace.plugins.multi.pooled_network import PooledNetwork
from headrace.runtime.config import Configuration
from headrace.runtime.config_key import config_field
from headrace.runtime.device_name import Member as Place
from headrace.runtime.errors import NotFound
from headrace.runtime.services import Services


class MultiNetwork(PooledNetwork):
    """MULTI_DEVICE_PRIORITIES gives the devices another order or other limits while it runs.

    Args:
        members: as of `PooledNetwork`.
        services: the runtime's.
    """

    def __init__(
        self, members: Sequence[Member], config: Configuration, services: Services
    ) -> None:
        places = _listed([(each, each.limit) for each in members])
        config = config.changed({PRIORITIES.name: places})
        super().__init__(members, config, services.states, spill=True)
        self._devices = services.devices

    def set_config(self, changes: Mapping[str, str]) -> None:
        """
        Raises:
            NotFound: MULTI_DEVICE_PRIORITIES lists a device that did not load the network.
            As `ExecutableNetwork.set_config`.
        """
        changes = dict(changes)
        order: list[tuple[Member, int]] = []
        if PRIORITIES.name in changes:
            order = self._order(read_list(changes[PRIORITIES.name], self._devices.available()))
            changes[PRIORITIES.name] = _listed(order)
        super().set_config(changes)
        if order:
            self.pool.arrange(order)

    def _order(self, places: Sequence[Place]) -> list[tuple[Member, int]]:
        by_name = {each.name: each for each in self._given}
        order = []
        for place in places:
            name = str(place.device)
            if name not in by_name:
                raise NotFound.unknown(
                    "device of this network", name, by_name, field=config_field(PRIORITIES.name)
                )
            member = by_name[name]
            order.append((member, place.count or optimal_requests(member.executable)))
        return order

    def _export(self) -> bytes:
        return write(
            Frame(each.name, each.architecture, each.backend_version, each.executable.export())
            for each in self._given
        )


def _listed(order: Sequence[tuple[Member, int]]) -> str:
    """The list as it stands in a device name."""
    return ",".join(
        f"[{member.name}]({count})" if ":" in member.name else f"{member.name}({count})"
        for member, count in order
    )
