"""GPUs on paper: CUDA's plugin as it is, with the processors in the place of what computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.plugins.cpu.backend.session import Provider
from headrace.plugins.cpu.running.runs import HOST
from headrace.plugins.cuda.backend.gpu import Gpu
from headrace.plugins.cuda.backend.machine import Machine
from headrace.plugins.cuda.backend.memory import PinnedMemory
from headrace.plugins.cuda.backend.nvml import Nvml
from headrace.plugins.cuda.plugin import CudaPlugin
from headrace.runtime.config.schema import Configuration
from headrace.runtime.network.values import Array

GPUS = (
    Gpu("GPU-aaaa-1", "NVIDIA H100", 80 * 2**30, (9, 0)),
    Gpu("GPU-bbbb-2", "Tesla T4", 16 * 2**30, (7, 5)),
)


class PaperManagement(Nvml):
    """What NVML would tell of `GPUS`; `taken` is what each process takes, None if untold."""

    def __init__(self, taken: int | None = None) -> None:
        self.taken = taken
        self.closed = False

    def taken_bytes(self, uuid: str) -> int:
        return {gpu.uuid: place for place, gpu in enumerate(GPUS, 1)}[uuid] << 30

    def taken_by(self, uuid: str, process: int) -> int | None:
        return self.taken

    def close(self) -> None:
        self.closed = True


class PlainMemory(PinnedMemory):
    """Memory that is not pinned."""

    def __init__(self) -> None: ...

    def allocate(self, size: int) -> Array:
        return np.empty(size, np.uint8)


def machine(
    management: PaperManagement | None = None, tensorrt: str = "TensorRT is missing"
) -> Machine:
    """One with `GPUS`."""

    def pinned(_: int) -> PinnedMemory:
        return PlainMemory()

    gpus = {str(number): gpu for number, gpu in enumerate(GPUS)}
    return Machine(gpus, management or PaperManagement(), lambda: tensorrt, pinned)


class PaperCuda(CudaPlugin):
    """Notes in `asked` with which options it would have asked for the provider."""

    asked: tuple[Any, ...] = ()

    def _provider(self, config: Configuration) -> Provider:
        self.asked = (*self.asked, super()._provider(config))
        return Provider()

    def _cuda(self, config: Configuration, device_id: str, *, graph: bool = False) -> Provider:
        self.asked = (*self.asked, super()._cuda(config, device_id, graph=graph))
        return Provider()

    def _where(self, device_id: str) -> Any:
        return HOST
