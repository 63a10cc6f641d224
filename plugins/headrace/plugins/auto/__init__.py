"""AUTO: serves each network on its best device, and on another one until the best is ready."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.auto.plugin import AutoPlugin
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """The function that the entry point names."""
    return AutoPlugin(name, services, config)
