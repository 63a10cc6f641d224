"""The device OPENVINO. OpenVINO runs networks on CPUs (oneDNN), Intel GPUs (OpenCL) and NPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from headrace.runtime.config.standard_keys import ISOLATION, NONE, PROCESS
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services

COMPILING: Final = "headrace.plugins.openvino:create_compiling"
"""The path of the function that makes the device that compiles."""


@plugin_api(1, isolated="in part")
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """The function that the entry point names. OpenVINO is imported when it is first needed, by
    another process. By this one, if ISOLATION says so, or if it is a process of a device already.

    Raises:
        Unavailable: OpenVINO is not installed.
    """
    # OpenVINO keeps the code of the last 1024 operations that it has compiled in the process, also
    # when their networks are gone, which takes hundreds of MB where requests have many shapes.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    from headrace.plugins.openvino.compiling import CompilingPlugin
    from headrace.plugins.openvino.plugin import OpenVinoPlugin
    from headrace.runtime.isolation.server.plugin import IsolatedPlugin

    given = config.get(ISOLATION.name)
    here = services.loads is None or (given is not None and ISOLATION.parse(given) == NONE)
    offered = replace(services, cache=None)  # which has networks, and not each of their shapes
    if here:
        compiling = CompilingPlugin(name, offered, config)
        return OpenVinoPlugin(name, services, config, compiling)
    stub = CompilingPlugin(name, offered, {})
    apart = IsolatedPlugin(name, offered, config, COMPILING, stub=stub)
    try:
        return OpenVinoPlugin(name, services, {**config, ISOLATION.name: PROCESS}, apart)
    except BaseException:
        apart.close()
        raise


@plugin_api(1)
def create_compiling(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """Makes the device that compiles for OPENVINO.

    Raises:
        Unavailable: OpenVINO is not installed.
    """
    from headrace.plugins.openvino.compiling import CompilingPlugin

    return CompilingPlugin(name, services, config)
