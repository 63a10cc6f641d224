"""The driver's management library, NVML. It says how much of a GPU's memory is taken."""

from __future__ import annotations

from typing import Any

from headrace.runtime.errors import Unavailable


class Nvml:
    """Uses NVML through its Python binding. Without them, nothing is told. Thread-safe, because the
    binding is. A GPU is named by its unique id."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._why = "nvidia-ml-py is not installed; install headrace with its extra 'cuda'"
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
        except pynvml.NVMLError as error:
            self._why = str(error)

    def taken_bytes(self, uuid: str) -> int:
        """The memory of a GPU that all processes together take.

        Raises:
            Unavailable: the driver does not answer; gives its reason.
        """
        if self._nvml is None:
            raise Unavailable(f"the NVIDIA driver does not tell its memory: {self._why}")
        try:
            gpu = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            return int(self._nvml.nvmlDeviceGetMemoryInfo(gpu).used)
        except self._nvml.NVMLError as error:
            raise Unavailable(f"the NVIDIA driver does not tell its memory: {error}") from error

    def taken_by(self, uuid: str, process: int) -> int | None:
        """The memory that a process takes. None if the driver does not tell, for example in most
        containers."""
        if self._nvml is None:
            return None
        try:
            gpu = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        except self._nvml.NVMLError:  # not supported for parts of GPUs and in virtual machines
            return None
        return next((entry.usedGpuMemory for entry in running if entry.pid == process), None)

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
