"""TEMPLATE that compiles nothing while HOLD is set: a device that takes its time.

If DEAF is set, it does not hear that the load was cancelled, as a backend in the middle of a call.
The log says that a load waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from headrace.plugins.template.config import SCHEMA
from headrace.plugins.template.plugin import TemplatePlugin
from headrace.runtime.config.schema import ConfigSchema, Configuration, Key
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network

WAITS = "a load waits at the gate"

_log = logging.getLogger(__name__)

HOLD = Key("HOLD", bool, False, "Whether compiling waits.", scope="device")
DEAF = Key("DEAF", bool, False, "Whether a cancelled load waits as well.", scope="device")


class GatedPlugin(TemplatePlugin):
    schema = ConfigSchema(*SCHEMA, HOLD, DEAF)

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        self._gate = threading.Event()
        super().__init__(name, services, config)

    def _set_config(self, config: Configuration) -> None:
        if config[HOLD]:
            self._gate.clear()
        else:
            self._gate.set()

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        if config[HOLD]:
            _log.warning(WAITS)
        if config[DEAF]:
            self._gate.wait()
        token.attach(self._gate.set)
        self._gate.wait()
        token.detach(self._gate.set)
        return super()._compile(network, config, token)


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return GatedPlugin(name, services, config)
