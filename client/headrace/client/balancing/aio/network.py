"""A network of the asyncio client for several servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.client.aio import Network, Session
from headrace.client.balancing import connections
from headrace.client.balancing.attempts import MovingPlace
from headrace.client.info import NetworkInfo
from headrace.client.plans import network_plans, plan
from headrace.client.plans.plan import Plan


def _on_all(make: Callable[..., Plan[Any]]) -> Any:
    """The method of `BalancedNetwork` that runs a plan on every server."""

    async def method(self: BalancedNetwork, /, *args: Any, **kwargs: Any) -> None:
        await self.client.on_all(make, self, *args, **kwargs)

    return plan.present(method, make, bound=True)


class BalancedNetwork(Network):
    """A network on several servers."""

    client: Any

    set_config = _on_all(network_plans.set_config)
    unload = _on_all(network_plans.unload)
    set_traffic = _on_all(network_plans.set_traffic)

    async def performance_counts(self, *_: Any, **__: Any) -> Any:
        connections.refuse("performance_counts", self.client.fleet.servers)

    def _session(self, identifier: str | None) -> Session:
        """Stays with one server."""
        pinned = Network(self.client.a_server(), self.info, pinned=self.pinned)
        return pinned.session(identifier)

    def place(self) -> MovingPlace:
        return MovingPlace(self.client, self)

    def look_up(self, timeout: float) -> Plan[NetworkInfo]:
        found: Plan[NetworkInfo] = self.client.group.network(self.name, self.pinned, timeout)
        return found
