"""CUDA: networks on NVIDIA's GPUs, computed by ONNX Runtime's CUDA or TensorRT provider."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """What the entry point names.

    Raises:
        Unavailable: saying what is missing: driver, GPU, a package, or a library.
    """
    # Before ONNX Runtime is loaded, as in CPU's.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # CUDA's own order is by speed, the driver's is this one, and ids are to mean the same in both.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    from headrace.plugins.cuda.machine import this_machine

    machine = this_machine()
    from headrace.plugins.cuda.plugin import CudaPlugin

    return CudaPlugin(name, services, config, machine)
