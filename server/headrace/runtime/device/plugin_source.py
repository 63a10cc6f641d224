"""Where plugins come from: entry points, or a function that the server's configuration names."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.runtime.device.api import PLUGIN_API_VERSION
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services

GROUP = "headrace.plugins"


@dataclass(frozen=True, slots=True)
class PluginSource:
    """Where a device's creation function comes from, and the settings to start it with.

    Attributes:
        path: the path of the function, for example ``package.module:create_plugin``. An isolated
            device's process imports it. It is empty if the function has no path.
        named: whether the operator named the device, and so expects it to start.
    """

    device: str
    load: Callable[[], Any]
    config: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    named: bool = False

    def configured(self, device: str, config: Mapping[str, str]) -> PluginSource:
        """The same plugin under another name, or with other settings."""
        return PluginSource(device, self.load, {**self.config, **config}, self.path)


def installed_plugins() -> dict[str, PluginSource]:
    """The plugins that installed distributions declare, by device name."""
    points = importlib.metadata.entry_points(group=GROUP)
    return {point.name: PluginSource(point.name, point.load, path=point.value) for point in points}


def factory_source(device: str, path: str) -> PluginSource:
    """The source of a plugin that the server's configuration names, for example as
    ``package.module:create_plugin``."""

    def load() -> Any:
        module, _, name = path.partition(":")
        return getattr(importlib.import_module(module), name or "create_plugin")

    return PluginSource(device, load, path=path)


def create_plugin(source: PluginSource, services: Services) -> Plugin:
    """Creates a plugin in this process.

    Raises:
        RuntimeError: the plugin is written for another version of the plugin API.
        TypeError: the function returned an object that is not a plugin.
        Any error that the function raises.
    """
    create = source.load()
    check_version(create)
    plugin = create(source.device, services, source.config)
    if not isinstance(plugin, Plugin):
        raise TypeError(f"create_plugin returned {type(plugin).__name__}, not a Plugin")
    return plugin


def check_version(create: Any) -> None:
    """Checks the plugin API that a creation function declares.

    Raises:
        RuntimeError: the version is not this server's, or the function declares none.
    """
    version = getattr(create, "headrace_plugin_api", None)
    if version != PLUGIN_API_VERSION:
        raise RuntimeError(
            f"the plugin is written for plugin API {version}, this server has "
            f"{PLUGIN_API_VERSION}; install versions that go together"
        )
