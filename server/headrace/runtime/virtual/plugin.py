"""A device that computes nothing itself: networks are loaded onto other devices."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.device import Device
from headrace.runtime.errors import Unimplemented
from headrace.runtime.virtual.members import Target, check_owners, own_config

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class VirtualPlugin(Device):
    """Has no threads. Its answer to a query or a load depends on the devices that the caller names,
    so each virtual device has its own `query_network` and `load_network`."""

    full_name: str = ""
    architecture: str = platform.machine()
    capabilities: tuple[str, ...] = ("FP32",)

    def add_extension(self, functions: Sequence[ir.Function]) -> None:  # noqa: ARG002
        raise Unimplemented(
            f"{self.name} computes nothing: give the extension to the devices of its list"
        )

    def _own_configuration(
        self,
        config: Mapping[str, str],
        targets: Sequence[Target],
        decided: Mapping[str, str] = _NOTHING,
        *,
        ignore_unknown: bool = False,
    ) -> Configuration:
        """The virtual device's own part of a configuration.

        Args:
            config: of a load or query, including the keys for the devices of the list.
            decided: values that override those in `config`.
            ignore_unknown: whether unknown keys are ignored, as in a query.

        Raises:
            NotFound, InvalidArgument: a key, its prefix, its value or the device id is wrong.
        """
        own = own_config(self.schema, config, targets)
        self.schema.refuse_server_keys(own, self.name)
        if not ignore_unknown:
            check_owners(config, (target.device for target in targets))
            self.schema.refuse_device_keys(own, self.name)
        own.update(decided)
        resolved = self.schema.resolve(self.settings(), own, ignore_unknown=ignore_unknown)
        self.device_id(resolved)
        return resolved
