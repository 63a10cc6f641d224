"""BATCH: runs requests together, as rows of one batch on another device."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.batch.plugin import BatchPlugin
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """The function that the entry point names."""
    return BatchPlugin(name, services, config)
