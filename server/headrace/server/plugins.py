"""The device plugins that a server's settings ask for."""

from __future__ import annotations

from dataclasses import replace

from headrace.runtime.config.device_name import unknown_device
from headrace.runtime.device.plugin_source import PluginSource, factory_source, installed_plugins
from headrace.runtime.errors import NotFound
from headrace.server.settings.settings import Settings


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
        elif original in installed:
            source = installed[original]
        else:
            raise NotFound.unknown("plugin", original, installed, field=f"plugins.{plugin.name}")
        if not plugin.enabled:
            sources.pop(plugin.name, None)
            continue
        sources[plugin.name] = source.configured(plugin.name, plugin.config)
    if settings.devices:
        for name in settings.devices:
            if name not in sources:
                raise unknown_device(name, sources, field="devices")
        sources = {name: replace(sources[name], named=True) for name in settings.devices}
    return [source for _, source in sorted(sources.items())]
