"""CPU: networks on the host's processors, computed by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.cpu.plugin import CpuPlugin
from headrace.runtime.plugin import Plugin, plugin_api
from headrace.runtime.services import Services


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """What the entry point names; raises if the device cannot work here."""
    return CpuPlugin(name, services, config)
