"""The device AUTO: chooses the best of the other devices for each network."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from headrace.plugins.auto.config import RUNTIME_FALLBACK, SCHEMA, STARTUP_FALLBACK
from headrace.plugins.auto.executable_network import AutoNetwork
from headrace.plugins.auto.ranking import (
    DeviceType,
    Facts,
    device_type,
    is_slow,
    needs,
    ranked,
)
from headrace.plugins.multi.device_list import Candidate, Failure, Listed, check_candidate
from headrace.plugins.multi.loading import is_callers, load_member, loaded, none_serves
from headrace.plugins.multi.spread_plugin import SpreadPlugin
from headrace.runtime.config.device_name import VIRTUAL_TYPES, DeviceName, Member
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import DEVICE_ID, PERFORMANCE_HINT
from headrace.runtime.device.load import Load, Loaded
from headrace.runtime.errors import HeadraceError, Internal, InvalidArgument, Unavailable
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.virtual.frames import Frame

_log = logging.getLogger(__name__)
_REFERENCE = DeviceType.REFERENCE


class AutoPlugin(SpreadPlugin):
    """Chooses among the listed devices, or among all physical devices if none is listed. Exclusions
    alone count as no list."""

    schema = SCHEMA
    chooses = True
    full_name = "Chooses the best device for each network"
    refused = {  # noqa: RUF012 - as the class declares it
        "AUTO": "put its devices into the list itself",
        "MULTI": "PERFORMANCE_HINT=THROUGHPUT has several devices serve",
    }

    # -- the list --

    def _members(
        self, network: Network, options: NetworkOptions, config: Mapping[str, str]
    ) -> Sequence[Member]:
        excluded = {str(each.device) for each in options.members if each.excluded}
        listed = [each for each in options.members if not each.excluded]
        members = listed or [
            Member(device)
            for device in self._physical()
            if not excluded & {str(device), device.type}
        ]
        if not members:
            raise InvalidArgument(f"{self.name} has no device left to choose", field="device")
        facts = [self._facts(each.device) for each in members]
        order = ranked(facts, needs(network), in_order=bool(listed))
        return [members[place] for place in order]

    def _physical(self) -> Iterator[DeviceName]:
        """All installed physical devices. A user may expect each of them to serve."""
        devices = self.services.devices
        for kind, ids in sorted(devices.available().items()):
            if kind not in VIRTUAL_TYPES and kind not in devices.not_installed():
                names = ids if len(ids) > 1 else [""]
                yield from (DeviceName(kind, each) for each in names)

    def _facts(self, name: DeviceName) -> Facts | None:
        """What is known about a device. For a device with a list, what all its devices share."""
        found = [self._facts_of_one(each) for each in name.physical()]
        known = [each for each in found if each is not None]
        if not known:
            return None
        capabilities = frozenset.intersection(*(each.capabilities for each in known))
        return Facts(min(each.type for each in known), capabilities)

    def _facts_of_one(self, name: DeviceName) -> Facts | None:
        try:
            plugin = self.services.devices.plugin(name.type)
            options = {DEVICE_ID.name: name.id} if name.id else {}
            capabilities = plugin.get_metric("OPTIMIZATION_CAPABILITIES", options)
            tells = plugin.metrics().get("DEVICE_TYPE")
            told = tells(options) if tells is not None else ""
        except HeadraceError:
            return None  # the device did not start, or is down; the load says why
        assert isinstance(capabilities, list)
        return Facts(device_type(str(name), told), frozenset(capabilities))

    def _passed_over(self, listed: Listed, config: Mapping[str, str]) -> Listed:
        """Drops the devices that refuse a setting given for all devices, for example a precision.

        Raises:
            InvalidArgument, NotFound: no device takes the setting, or a device refuses a setting
                given for it alone.
        """
        candidates: list[Candidate] = []
        failures = [*listed.failures]
        for each in listed.candidates:
            try:
                check_candidate(each)
            except InvalidArgument as error:
                if error.field not in {f"config[{key!r}]" for key in config if "." not in key}:
                    raise
                failures.append(Failure(each.name, error))
                continue
            candidates.append(each)
        if not candidates and listed.candidates:
            raise failures[-1].error
        return Listed(tuple(candidates), tuple(failures), listed.own)

    # -- loading --

    def _check(self, listed: Listed, config: Mapping[str, str]) -> Listed:
        return self._passed_over(listed, config)

    def _spread(
        self,
        load: Load,
        listed: Listed,
        config: Configuration,
        frames: Mapping[str, Frame],
    ) -> Loaded:
        failures = [*listed.failures]
        slow = self._slow(listed)
        for candidate in self._sequence(listed.candidates, config, frames):
            if load.token.error is not None:
                raise load.token.error
            try:
                frame = frames.get(candidate.name)
                member, notes = load_member(load.network, candidate, load.token, frame)
            except HeadraceError as error:
                if load.token.error is not None or is_callers(error):
                    raise
                failures.append(Failure(candidate.name, error))
                bug = error if isinstance(error, Internal) else None
                _log.warning("%s", failures[-1], exc_info=bug)
                continue
            try:
                made = AutoNetwork(
                    load.network,
                    listed.candidates,
                    member,
                    failures,
                    config,
                    self.services,
                    spill=config[PERFORMANCE_HINT] == "THROUGHPUT",
                    fallback=config[RUNTIME_FALLBACK],
                    slow=slow,
                )
            except BaseException:
                member.executable.close()
                raise
            if failures and candidate.name in slow:
                notes = (is_slow(candidate.name), *notes)
                _log.warning("%s: %s", self.name, notes[0])
            return loaded(made, [member], failures, notes)
        if not failures:
            raise Unavailable(f"{self.name} has no device that works")
        raise none_serves(self.name, failures)

    def _sequence(
        self, candidates: Sequence[Candidate], config: Configuration, frames: Mapping[str, Frame]
    ) -> list[Candidate]:
        """The order in which to try the devices that the network may start on: the device that
        exported the network, or else a processor, and then the others, the best first."""
        first = [each for each in candidates if each.name in frames]
        if not first and config[STARTUP_FALLBACK]:
            first = [each for each in candidates if self._is_processor(each)][:1]
        return [*first, *(each for each in candidates if each not in first)]

    def _slow(self, listed: Listed) -> frozenset[str]:
        """The devices that are there to compare others with. Nobody expects them to serve, except a
        caller who lists one first, or no other."""
        facts = {each.name: self._facts(each.target.device) for each in listed.candidates}
        slow = [name for name, found in facts.items() if found and found.type is _REFERENCE]
        is_wanted = not listed.failures and slow[:1] == [*facts][:1]
        return frozenset() if is_wanted else frozenset(slow)

    def _is_processor(self, candidate: Candidate) -> bool:
        facts = self._facts(candidate.target.device)
        return facts is not None and facts.type is DeviceType.PROCESSOR
