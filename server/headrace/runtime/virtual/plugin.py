"""A device that computes nothing itself: networks are loaded onto other devices."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import onnx_ir as ir

from headrace.runtime.device.device import Device
from headrace.runtime.errors import Unimplemented


class VirtualPlugin(Device):
    """Has no threads. The devices that a query or a load names decide what it answers, so each
    virtual device has its own `query_network`, `load_network` and `import_network`."""

    full_name: str = ""
    architecture: str = platform.machine()
    capabilities: tuple[str, ...] = ("FP32",)

    def add_extension(self, functions: Sequence[ir.Function]) -> None:  # noqa: ARG002
        raise Unimplemented(
            f"{self.name} computes nothing: give the extension to the devices of its list"
        )
