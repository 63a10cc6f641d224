"""TEMPLATE: a device that computes with onnx's reference evaluator. Copy it to write your own."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.template.plugin import TemplatePlugin
from headrace.sdk import Plugin, Services, plugin_api


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """Creates the plugin for the entry point. Raises if the device cannot work here."""
    return TemplatePlugin(name, services, config)
