"""CUDA: networks on NVIDIA's GPUs, computed by ONNX Runtime's CUDA or TensorRT provider."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """Creates the plugin for the entry point.

    Raises:
        NotInstalled, Unavailable: CUDA does not work here; says what to mend.
    """
    # Set this before ONNX Runtime is loaded, as the CPU plugin does.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # CUDA orders GPUs by speed, and the driver orders them by bus. Ids must mean the same in both.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    from headrace.plugins.cuda.backend.machine import absent, this_machine

    try:
        from headrace.plugins.cuda.plugin import CudaPlugin, open_smallest
    except ImportError as error:
        raise absent(f"{error}; install headrace with its extra 'cuda'") from error
    return CudaPlugin(name, services, config, this_machine(open_smallest))
