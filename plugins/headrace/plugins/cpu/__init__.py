"""CPU: networks on the host's processors, computed by ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """Creates the plugin for the entry point. Raises if the device cannot work here."""
    # From 1.29 on, ONNX Runtime's official builds report names and hashes of models to their maker,
    # and keep a device id in the home folder. They do not if this is set before they are loaded.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from headrace.plugins.cpu.plugin import CpuPlugin

    return CpuPlugin(name, services, config)
