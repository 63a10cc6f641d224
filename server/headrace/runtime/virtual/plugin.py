"""A device that computes nothing itself: networks are loaded onto other devices."""

from __future__ import annotations

from collections.abc import Callable

from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin import Plugin, Support
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions


class VirtualPlugin(Plugin):
    """Base of plugins that make their networks in `load_network` and answer queries in
    `query_network`, for both depend on the devices that are named there."""

    def _compile_checked(
        self,
        network: Network,
        config: Configuration,
        options: NetworkOptions,  # noqa: ARG002 - for devices that check
        make: Callable[[Network, Configuration, CancelToken], ExecutableNetwork],
        token: CancelToken,
    ) -> ExecutableNetwork:
        """Without a check: the other devices make one."""
        return make(network, config, token)

    def _support(self, network: Network, config: Configuration) -> Support:
        raise NotImplementedError("what is supported depends on the devices that a query names")

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        raise NotImplementedError("what to compile for depends on the devices that a load names")
