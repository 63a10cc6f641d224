"""The device OPENVINO. OpenVINO runs networks on CPUs (oneDNN), Intel GPUs (OpenCL) and NPUs."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services


@plugin_api(1, isolated="by default", late=True)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """The function that the entry point names. OpenVINO is imported when it is first needed.

    Raises:
        Unavailable: OpenVINO is not installed.
    """
    from headrace.plugins.openvino.plugin import OpenVinoPlugin

    return OpenVinoPlugin(name, services, config)
