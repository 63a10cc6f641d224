"""The devices MULTI and AUTO. Each device of their list gets the whole network.

MULTI gives each request to the device that is free first. AUTO serves each network on its best
device, and on another one until that is ready.
"""

from __future__ import annotations

import logging
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from headrace.plugins.multi import device_list
from headrace.plugins.multi.config import (
    AUTO_SCHEMA,
    CHOICE,
    MEASURED,
    MULTI_SCHEMA,
    PRIORITIES,
    RUNTIME_FALLBACK,
    STARTUP_FALLBACK,
    STRICT,
)
from headrace.plugins.multi.device_list import (
    Candidate,
    DeviceList,
    Failure,
    Policy,
    read_priorities,
)
from headrace.plugins.multi.executable_network import PooledNetwork
from headrace.plugins.multi.loading import load_some, none_serves, read_exports
from headrace.plugins.multi.members import PoolMembers
from headrace.plugins.multi.ranking import (
    DeviceFacts,
    DeviceType,
    device_type,
    is_slow,
    needs,
    ranked,
)
from headrace.runtime.config.device_name import VIRTUAL_TYPES, DeviceName, Member
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import DEVICE_ID, PERFORMANCE_HINT
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.plugin import AS_IT_IS
from headrace.runtime.device.services import Services
from headrace.runtime.errors import HeadraceError, InvalidArgument
from headrace.runtime.execution.background import Background
from headrace.runtime.metrics.families import DEVICE_QUEUE_DEPTH
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult
from headrace.runtime.virtual.exports import MemberExport
from headrace.runtime.virtual.members import check_owners, withheld_keys
from headrace.runtime.virtual.plugin import VirtualPlugin

_log = logging.getLogger(__name__)


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
        strict = own.get(STRICT)
        return device_list.query(network, listed.candidates, strict=strict, lenient=self.chooses)

    def load_network(self, load: Load) -> ExecutableNetwork:
        """Loads the network on devices of the list. A device that cannot use its exported bytes
        compiles the network again, and a note says why."""
        exports: Mapping[str, MemberExport] = {}
        try:
            exports = read_exports(load.native) if load.native else {}
        except InvalidArgument as error:
            load = replace(load, notes=(*load.notes, f"compiled anew: {error.message}"))
        members = self._members(load.network, load.options, load.config)
        listed = self._find(members, load.config, load.options)
        check_owners(load.config, (member.device for member in members))
        listed = self._checked(listed, load.config)
        own = self._configuration(listed.own)
        self.device_id(own)
        made = self._opened(load, own, partial(self._spread, load, listed, own, exports))
        assert isinstance(made, PooledNetwork)
        with self._lock:
            self._networks.add(made)
        return made

    # -- inside --

    def _find(
        self, members: Sequence[Member], config: Mapping[str, str], options: NetworkOptions
    ) -> DeviceList:
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
        for target in (candidate.target for candidate in listed.candidates):
            target.plugin.schema.refuse_server_keys(target.config, target.plugin.name)
        return listed

    def _checked(self, listed: DeviceList, config: Mapping[str, str]) -> DeviceList:
        """The devices that accept their part of the configuration. A device that chooses leaves out
        those that refuse a setting given for all devices, for example a precision.

        Raises:
            InvalidArgument, NotFound: no device takes the setting, or a device refuses a setting
                given for it alone.
        """
        common = {f"config[{key!r}]" for key in config if "." not in key} if self.chooses else ()
        candidates: list[Candidate] = []
        failures = [*listed.failures]
        for candidate in listed.candidates:
            try:
                device_list.check_candidate(candidate)
            except InvalidArgument as error:
                if error.field not in common:
                    raise
                failures.append(Failure(candidate.name, error))
                continue
            candidates.append(candidate)
        if not candidates and listed.candidates:
            raise failures[-1].error
        return DeviceList(tuple(candidates), tuple(failures), listed.own)

    def _spread(
        self,
        load: Load,
        listed: DeviceList,
        config: Configuration,
        exports: Mapping[str, MemberExport],
    ) -> LoadResult:
        """
        Args:
            exports: for an import, the bytes that each device exported.
        """
        strict, policy = config.get(STRICT), self._policy(load, listed, config)
        if strict and listed.failures:
            raise listed.failures[0].error
        members, failures, notes = load_some(
            load.network,
            self._sequence(listed.candidates, config, exports),
            load.token,
            exports,
            all_of_them=policy.all_of_them,
            strict=strict,
        )
        failures = [*listed.failures, *failures]
        if not members:
            raise none_serves(self.name, failures)
        first = members[0].name
        if failures and first in policy.slow:
            notes.insert(0, is_slow(first))
            _log.warning("%s: %s", self.name, notes[0])
        try:
            pooled = PoolMembers(
                load.network, listed.candidates, members, failures, self.services, policy
            )
            made = PooledNetwork(pooled, config)
        except BaseException:
            for member in members:
                member.executable.close()
            raise
        from_cache = any(each.executable.loaded_from_cache for each in members)
        return LoadResult(made, (*map(str, failures), *notes), from_cache=from_cache)

    def _sum(self, what: str) -> int:
        with self._lock:
            networks = [*self._networks]
        return sum(getattr(network.pool, what) for network in networks if not network._closed)

    # -- hooks of the two --

    @abstractmethod
    def _members(
        self, network: Network, options: NetworkOptions, config: Mapping[str, str]
    ) -> Sequence[Member]:
        """The devices to consider, the preferred one first."""

    @abstractmethod
    def _policy(self, load: Load, listed: DeviceList, config: Configuration) -> Policy:
        """How to use them."""

    def _sequence(
        self,
        candidates: Sequence[Candidate],
        config: Configuration,
        exports: Mapping[str, MemberExport],
    ) -> Sequence[Candidate]:
        """The order in which they load the network."""
        return candidates

    # -- hooks --

    def _metrics(self) -> Mapping[str, Metric]:
        return {
            "NUMBER_OF_WAITING_INFER_REQUESTS": lambda _: self._sum("waiting"),
            "NUMBER_OF_EXEC_INFER_REQUESTS": lambda _: self._sum("running"),
        }


class MultiPlugin(SpreadPlugin):
    schema = MULTI_SCHEMA
    full_name = "Gives each request to the first device of a list that is free"
    refused = {  # noqa: RUF012 - as the class declares it
        "MULTI": "put its devices into the list itself",
        "AUTO": "MULTI needs a list of devices; name them, or use AUTO alone",
    }

    def _set_config(self, config: Configuration) -> None:
        text = config[PRIORITIES]
        if text:
            # Before the server has started, the devices of the list may not exist yet.
            devices = self.services.devices.available() if self._started else None
            device_list.refuse_nested(read_priorities(text, devices), self.name, self.refused)

    def _members(
        self, network: Network, options: NetworkOptions, config: Mapping[str, str]
    ) -> Sequence[Member]:
        if options.members:
            return options.members
        text = config.get(PRIORITIES.name, self.settings().get(PRIORITIES.name, ""))
        if not text:
            raise InvalidArgument(
                f"{self.name} needs a list of devices: name them in order of preference, as "
                f"MULTI:CPU(4),TEMPLATE(1), or set {PRIORITIES.name} to such a list",
                field="device",
            )
        return read_priorities(text, self.services.devices.available())

    def _policy(self, load: Load, listed: DeviceList, config: Configuration) -> Policy:
        return Policy(all_of_them=True)


class AutoPlugin(SpreadPlugin):
    """Chooses among the listed devices, or among all physical devices if none is listed. Exclusions
    alone count as no list."""

    schema = AUTO_SCHEMA
    chooses = True
    full_name = "Chooses the best device for each network"
    refused = {  # noqa: RUF012 - as the class declares it
        "AUTO": "put its devices into the list itself",
        "MULTI": "PERFORMANCE_HINT=THROUGHPUT has several devices serve",
    }

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        self._background = Background("headrace-auto-measures")
        super().__init__(name, services, config)

    def _close(self) -> None:
        self._background.stop()

    def _members(
        self, network: Network, options: NetworkOptions, config: Mapping[str, str]
    ) -> Sequence[Member]:
        excluded = {str(member.device) for member in options.members if member.excluded}
        listed = [member for member in options.members if not member.excluded]
        members = listed or [
            Member(device)
            for device in self._physical()
            if not excluded & {str(device), device.type}
        ]
        if not members:
            raise InvalidArgument(f"{self.name} has no device left to choose", field="device")
        facts = [self._facts(member.device) for member in members]
        order = ranked(facts, needs(network), in_order=bool(listed))
        return [members[place] for place in order]

    def _policy(self, load: Load, listed: DeviceList, config: Configuration) -> Policy:
        throughput = config[PERFORMANCE_HINT] == "THROUGHPUT"
        return Policy(
            all_of_them=False,
            fallback=config[RUNTIME_FALLBACK],
            # Two devices on the same processors would only take them from each other.
            spill=throughput and any(kind < DeviceType.PROCESSOR for kind in self._kinds(listed)),
            slow=self._slow(listed),
            measured=self._measured(load, listed) if config[CHOICE] == MEASURED else (),
            throughput=throughput,
            full_name=load.name,
            warm_up=load.warm_up,
            background=self._background,
        )

    def _kinds(self, listed: DeviceList) -> list[DeviceType]:
        """The types of the devices, in their order; REFERENCE for one that nothing is known of."""
        facts = [self._facts(candidate.target.device) for candidate in listed.candidates]
        return [DeviceType.REFERENCE if each is None else each.type for each in facts]

    def _measured(self, load: Load, listed: DeviceList) -> tuple[str, ...]:
        """The devices to measure: those of the caller's list, or else all that somebody has for
        their speed. None if the caller has put a reference device first: who wants to compare with
        it does not want another one. None, too, if the network takes sequences of tensors: nobody
        knows how many a request will have."""
        if any(port.kind == "sequence" for port in load.network.inputs):
            return ()
        names = [candidate.name for candidate in listed.candidates]
        kinds = self._kinds(listed)
        if any(not member.excluded for member in load.options.members):
            worst = DeviceType.EMULATED
            if kinds and kinds[0] is DeviceType.REFERENCE:
                return ()
        else:
            worst = DeviceType.PROCESSOR
        return tuple(name for name, kind in zip(names, kinds, strict=True) if kind <= worst)

    def _sequence(
        self,
        candidates: Sequence[Candidate],
        config: Configuration,
        exports: Mapping[str, MemberExport],
    ) -> list[Candidate]:
        """The order in which to try the devices that the network may start on: the device that
        exported the network, or else a processor, and then the others, the best first."""
        first = [candidate for candidate in candidates if candidate.name in exports]
        if not first and config[STARTUP_FALLBACK]:
            first = [candidate for candidate in candidates if self._is_processor(candidate)][:1]
        return [*first, *(candidate for candidate in candidates if candidate not in first)]

    def _physical(self) -> Iterator[DeviceName]:
        """All installed physical devices. A user may expect each of them to serve."""
        devices = self.services.devices
        for kind, ids in sorted(devices.available().items()):
            if kind not in VIRTUAL_TYPES and kind not in devices.not_installed():
                names = ids if len(ids) > 1 else [""]
                yield from (DeviceName(kind, name) for name in names)

    def _facts(self, name: DeviceName) -> DeviceFacts | None:
        """What is known about a device. For a device with a list, what all its devices share."""
        facts = [self._facts_of_one(device) for device in name.physical()]
        known = [fact for fact in facts if fact is not None]
        if not known:
            return None
        capabilities = frozenset.intersection(*(each.capabilities for each in known))
        return DeviceFacts(min(each.type for each in known), capabilities)

    def _facts_of_one(self, name: DeviceName) -> DeviceFacts | None:
        try:
            plugin = self.services.devices.plugin(name.type)
            options = {DEVICE_ID.name: name.id} if name.id else {}
            capabilities = plugin.get_metric("OPTIMIZATION_CAPABILITIES", options)
            tells = plugin.metrics().get("DEVICE_TYPE")
            told = tells(options) if tells is not None else ""
        except HeadraceError:
            return None  # the device did not start, or is down; the load says why
        assert isinstance(capabilities, list)
        return DeviceFacts(device_type(str(name), told), frozenset(capabilities))

    def _slow(self, listed: DeviceList) -> frozenset[str]:
        """The devices that are there to compare others with. Nobody expects them to serve, except a
        caller who lists one first, or no other."""
        facts = {
            candidate.name: self._facts(candidate.target.device) for candidate in listed.candidates
        }
        slow = [
            name for name, found in facts.items() if found and found.type is DeviceType.REFERENCE
        ]
        is_wanted = not listed.failures and slow[:1] == [*facts][:1]
        return frozenset() if is_wanted else frozenset(slow)

    def _is_processor(self, candidate: Candidate) -> bool:
        facts = self._facts(candidate.target.device)
        return facts is not None and facts.type is DeviceType.PROCESSOR
