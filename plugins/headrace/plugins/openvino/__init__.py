"""OPENVINO: networks on processors (oneDNN), Intel GPUs (OpenCL) and NPUs, computed by OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.runtime.errors import Unavailable
from headrace.runtime.plugin import Plugin, plugin_api
from headrace.runtime.services import Services


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """What the entry point names.

    Raises:
        Unavailable: OpenVINO is not installed.
    """
    try:
        from headrace.plugins.openvino.plugin import OpenVinoPlugin
    except ImportError as error:
        raise Unavailable(
            f"OpenVINO cannot be imported ({error}); install it with pip install "
            f"'headrace[openvino]'"
        ) from error
    return OpenVinoPlugin(name, services, config)
