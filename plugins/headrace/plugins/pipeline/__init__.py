"""PIPELINE: runs several networks behind one name, one after the other or side by side."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.pipeline.plugin import PipelinePlugin
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """Makes the plugin. The package's entry point names this function."""
    return PipelinePlugin(name, services, config)
