"""The settings of one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """A `[plugins.NAME]` table of the configuration file.

    Attributes:
        name: the device's name on this server.
        factory: ``module:function`` that makes the plugin, instead of an installed one.
        device: the installed plugin to register under this name; "" means `name` itself.
        config: the plugin's configuration before any client configures it.
        enabled: whether the device exists at all.
        library: the library with an execution provider of ONNX Runtime that computes for the
            device: a Python package that has it, or an absolute path; "" if none does.
        ep: the provider's name, for a library that has several.
    """

    name: str
    factory: str | None = None
    device: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    enabled: bool = True
    library: str = ""
    ep: str = ""
