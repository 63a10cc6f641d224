"""MULTI and AUTO: several devices serve one network. With MULTI each request runs on whichever is
free first; AUTO serves the network on its best device, and on another one until the best is ready.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.multi.plugin import AutoPlugin, MultiPlugin
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """Makes MULTI. An entry point names this function."""
    return MultiPlugin(name, services, config)


@plugin_api(1)
def create_auto(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """Makes AUTO."""
    return AutoPlugin(name, services, config)
