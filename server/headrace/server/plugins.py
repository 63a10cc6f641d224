"""The device plugins that a server's settings ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from headrace.runtime.config.device_name import unknown_device
from headrace.runtime.device.plugin_source import PluginSource, factory_source, installed_plugins
from headrace.runtime.errors import NotFound
from headrace.server.settings.plugin_settings import PluginSettings
from headrace.server.settings.settings import Settings

_PROVIDER: Final = "headrace.plugins.provider:create_plugin"


def plugin_sources(settings: Settings) -> list[PluginSource]:
    """The plugins that the settings ask for. By default, these are all installed plugins.

    Raises:
        NotFound: the settings name a plugin that is not installed.
    """
    installed = installed_plugins()
    sources = dict(installed)
    for plugin in settings.plugins:
        original = plugin.device or plugin.name
        if plugin.factory is not None:
            source = factory_source(plugin.name, plugin.factory)
        elif plugin.library:
            source = factory_source(plugin.name, _PROVIDER).configured(
                plugin.name, _provider(plugin)
            )
        elif original in installed:
            source = installed[original]
        else:
            raise NotFound.unknown("plugin", original, installed, field=f"plugins.{plugin.name}")
        if not plugin.enabled:
            sources.pop(plugin.name, None)
            continue
        configured = source.configured(plugin.name, plugin.config)
        sources[plugin.name] = replace(configured, named=bool(plugin.library))
    if settings.devices:
        for name in settings.devices:
            if name not in sources:
                raise unknown_device(name, sources, field="devices")
        sources = {name: replace(sources[name], named=True) for name in settings.devices}
    return [source for _, source in sorted(sources.items())]


def _provider(plugin: PluginSettings) -> Mapping[str, str]:
    """The configuration keys that say which library computes for the device."""
    kind = "PROVIDER_LIBRARY" if "/" in plugin.library else "PROVIDER_PACKAGE"
    named = {"EXECUTION_PROVIDER": plugin.ep} if plugin.ep else {}
    return {kind: plugin.library, **named}
