"""Devices that the server's configuration makes of a library with an execution provider of ONNX
Runtime: GPUs and NPUs of all makers."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services


@plugin_api(1, isolated="by default")
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """Creates the plugin of a table ``[plugins.NAME]`` that has a library.

    Raises:
        NotInstalled: the package is not installed.
        Unavailable: the library cannot be used, or offers no device here; says what to mend.
    """
    # Set this before ONNX Runtime is loaded, as the CPU plugin does.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from headrace.plugins.provider.plugin import ProviderPlugin

    return ProviderPlugin(name, services, config)
