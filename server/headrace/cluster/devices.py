"""Gives a replica the devices that Ray has reserved for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace.server.settings.plugin_settings import PluginSettings
from headrace.server.settings.settings import Settings

_GPU: Final = "GPU"
_CUDA: Final = "CUDA"


def with_devices(
    settings: Settings, accelerators: Mapping[str, Sequence[str]], cpus: float
) -> Settings:
    """The settings with the devices of Ray's resources.

    Ray hides the GPUs that it has given to others, so a replica's CUDA devices are the ones it has,
    counted from 0. Without a GPU the replica has no CUDA. CPU and OPENVINO use as many threads as
    the replica has whole processors. What the settings say themselves wins.

    Args:
        accelerators: Ray's accelerator ids by resource.
        cpus: the replica's share of processors; less than 1 if it reserves none.
    """
    plugins = {plugin.name: plugin for plugin in settings.plugins}
    if not accelerators.get(_GPU) and _CUDA not in settings.devices:
        plugins.setdefault(_CUDA, PluginSettings(_CUDA, enabled=False))
    if cpus >= 1:
        for name in ("CPU", "OPENVINO"):
            given = plugins.get(name, PluginSettings(name))
            config = {"INFERENCE_NUM_THREADS": str(int(cpus)), **given.config}
            plugins[name] = replace(given, config=config)
    return replace(settings, plugins=tuple(plugins.values()))
