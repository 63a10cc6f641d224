"""The MULTI device: each request runs on the device of its list that is free first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.plugins.multi.config import PRIORITIES, SCHEMA, STRICT
from headrace.plugins.multi.device_list import Listed, read_priorities, refuse_nested
from headrace.plugins.multi.executable_network import MultiNetwork
from headrace.plugins.multi.loading import load_all, loaded, none_serves
from headrace.plugins.multi.spread_plugin import SpreadPlugin
from headrace.runtime.config.device_name import Member
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.load import Load, Loaded
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.virtual.frames import Frame


class MultiPlugin(SpreadPlugin):
    schema = SCHEMA
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
            refuse_nested(read_priorities(text, devices), self.name, self.refused)

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

    def _needs_all(self, config: Configuration) -> bool:
        return config[STRICT]

    def _spread(
        self,
        load: Load,
        listed: Listed,
        config: Configuration,
        frames: Mapping[str, Frame],
    ) -> Loaded:
        strict = config[STRICT]
        if strict and listed.failures:
            raise listed.failures[0].error
        members, failures, notes = load_all(
            load.network, listed.candidates, load.token, strict=strict, frames=frames
        )
        failures = [*listed.failures, *failures]
        if not members:
            raise none_serves(self.name, failures)
        try:
            made = MultiNetwork(
                load.network, listed.candidates, members, failures, config, self.services
            )
        except BaseException:
            for member in members:
                member.executable.close()
            raise
        return loaded(made, members, failures, notes)
