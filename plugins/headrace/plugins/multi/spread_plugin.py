"""The code that the MULTI and AUTO devices share. Each device of a list gets the whole network."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from headrace.plugins.multi import device_list
from headrace.plugins.multi.device_list import Listed
from headrace.plugins.multi.loading import none_serves, read_frames
from headrace.plugins.multi.pooled_network import PooledNetwork
from headrace.runtime.config.device_name import Member
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, Loaded
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.plugin import AS_IT_IS
from headrace.runtime.device.services import Services
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.metrics.families import DEVICE_QUEUE_DEPTH
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult
from headrace.runtime.virtual.frames import Frame
from headrace.runtime.virtual.members import check_owners, withheld_keys
from headrace.runtime.virtual.plugin import VirtualPlugin


class SpreadPlugin(VirtualPlugin):
    """Each device preprocesses and transforms the network by itself.

    `_lock` guards the set of networks too.

    Attributes:
        chooses: whether a device that does not accept a value of the configuration is skipped.
        refused: device types that make no sense in its list, and what to write instead.
    """

    imports_native = True
    chooses: ClassVar[bool] = False
    refused: ClassVar[Mapping[str, str]] = {}

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        self._networks: weakref.WeakSet[PooledNetwork] = weakref.WeakSet()
        super().__init__(name, services, config)

    def announce(self) -> None:
        super().announce()
        for name in self.names():
            counters = self.services.counters.device(name)
            counters.register_gauge(DEVICE_QUEUE_DEPTH, lambda: self._sum("waiting"))

    # -- networks --

    def query_network(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions = AS_IT_IS
    ) -> QueryResult:
        """The answer of the first device that runs the whole network. If none does, the answer of
        the device that runs the most layers."""
        listed = self._find(self._members(network, options, config), config, options)
        own = self.schema.resolve(self.settings(), listed.own, ignore_unknown=True)
        if not listed.candidates:
            raise none_serves(self.name, listed.failures)
        strict = self._needs_all(own)
        return device_list.query(network, listed.candidates, strict=strict, lenient=self.chooses)

    def load_network(self, load: Load) -> ExecutableNetwork:
        """Loads the network on devices of the list. A device that cannot use its exported bytes
        compiles the network again, and a note says why."""
        frames: Mapping[str, Frame] = {}
        try:
            frames = read_frames(load.native) if load.native else {}
        except InvalidArgument as error:
            load = replace(load, notes=(*load.notes, f"compiled anew: {error.message}"))
        members = self._members(load.network, load.options, load.config)
        listed = self._find(members, load.config, load.options)
        check_owners(load.config, (each.device for each in members))
        listed = self._check(listed, load.config)
        own = self._configuration(listed.own)
        self.device_id(own)
        made = self._opened(load, own, partial(self._spread, load, listed, own, frames))
        assert isinstance(made, PooledNetwork)
        with self._lock:
            self._networks.add(made)
        return made

    # -- inside --

    def _find(
        self, members: Sequence[Member], config: Mapping[str, str], options: NetworkOptions
    ) -> Listed:
        device_list.refuse_nested(members, self.name, self.refused)
        listed = device_list.find(
            members,
            config,
            self.settings(),
            self.services.devices,
            self.schema,
            withheld_keys(self.schema),
            options,
        )
        self.schema.refuse_server_keys(listed.own, self.name)
        for target in (each.target for each in listed.candidates):
            target.plugin.schema.refuse_server_keys(target.config, target.plugin.name)
        return listed

    def _sum(self, what: str) -> int:
        with self._lock:
            networks = [*self._networks]
        return sum(getattr(each.pool, what) for each in networks if not each._closed)

    # -- hooks of the two --

    @abstractmethod
    def _members(
        self, network: Network, options: NetworkOptions, config: Mapping[str, str]
    ) -> Sequence[Member]:
        """The devices to consider, the preferred one first."""

    def _check(self, listed: Listed, config: Mapping[str, str]) -> Listed:
        """The devices that accept their part of the configuration. Raises as `check_candidate`."""
        for each in listed.candidates:
            device_list.check_candidate(each)
        return listed

    @abstractmethod
    def _spread(
        self, load: Load, listed: Listed, config: Configuration, frames: Mapping[str, Frame]
    ) -> Loaded:
        """Loads the network on devices of the list.

        Args:
            frames: for an import, the bytes that each device exported.
        """

    def _needs_all(self, config: Configuration) -> bool:
        """Whether every device of the list has to run the network."""
        return False

    # -- hooks --

    def _metrics(self) -> Mapping[str, Metric]:
        return {
            "NUMBER_OF_WAITING_INFER_REQUESTS": lambda _: self._sum("waiting"),
            "NUMBER_OF_EXEC_INFER_REQUESTS": lambda _: self._sum("running"),
        }
