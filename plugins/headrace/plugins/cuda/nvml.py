"""The driver's management library, NVML. It lists the GPUs, and says how much of their memory is
taken."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from headrace.plugins.cuda.gpu import Gpu
from headrace.runtime.errors import NotInstalled, Unavailable

_REASONS: Final = MappingProxyType(
    {
        4: "the NVIDIA driver does not let this user query GPUs; check who may open /dev/nvidia*",
        9: "the NVIDIA driver is installed but not loaded; load it (modprobe nvidia), or in a "
        "container give it the GPUs (--gpus all)",
        12: "there is no NVIDIA driver: libnvidia-ml.so.1 was not found; install the driver, or in "
        "a container give it the GPUs (--gpus all)",
        15: "the NVIDIA driver has lost a GPU; restart the machine",
        18: "the NVIDIA driver's library and its kernel module are of different versions; restart "
        "the machine",
    }
)
"""Explanations by NVML's return code."""


DRIVER: Final = Path("/proc/driver/nvidia/version")
"""This file exists while the driver is loaded."""


class Management(Protocol):
    """The questions that this plugin asks NVML."""

    def gpus(self) -> list[Gpu]:
        """All GPUs of the machine, in bus order. A divided GPU (MIG) is replaced with the parts
        that CUDA can use."""

    def find(self, uuid: str) -> Gpu | None:
        """The GPU, or part of a GPU, with this unique id; None if there is none."""

    def taken_bytes(self, uuid: str) -> int:
        """The memory of a GPU that all processes together take.

        Raises:
            Unavailable: the driver does not answer; gives its reason.
        """

    def taken_by(self, uuid: str, process: int) -> int | None:
        """The memory that a process takes. None if the driver does not tell, for example in most
        containers."""

    def close(self) -> None:
        """Closes the library."""


def reason(code: int, text: str) -> str:
    """Explains an error of NVML, and says what to do about it.

    Args:
        code: NVML's return code.
        text: NVML's own words for it.
    """
    return _REASONS.get(code, f"the NVIDIA driver does not answer: {text} (NVML error {code})")


class Nvml:
    """Uses NVML through its Python binding. Thread-safe, because the binding is.

    Raises:
        NotInstalled: neither the binding nor NVIDIA's driver is installed.
        Unavailable: only the binding is missing, or NVML does not start; gives the reason.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            # A loaded driver means that there is a GPU. Somebody may expect the server to use it.
            absent = Unavailable if DRIVER.exists() else NotInstalled
            raise absent(
                "nvidia-ml-py is not installed; install headrace with its extra 'cuda'"
            ) from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise Unavailable(reason(error.value, str(error))) from error

    def gpus(self) -> list[Gpu]:
        nvml = self._nvml
        try:
            return [
                gpu
                for index in range(nvml.nvmlDeviceGetCount())
                for gpu in self._usable(nvml.nvmlDeviceGetHandleByIndex(index), index)
            ]
        except nvml.NVMLError as error:
            raise Unavailable(reason(error.value, str(error))) from error

    def find(self, uuid: str) -> Gpu | None:
        nvml = self._nvml
        try:
            part = nvml.nvmlDeviceGetHandleByUUID(uuid)
            whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
            return self._gpu(part, nvml.nvmlDeviceGetIndex(whole), whole)
        except nvml.NVMLError:
            return None

    def taken_bytes(self, uuid: str) -> int:
        nvml = self._nvml
        try:
            gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
            return int(nvml.nvmlDeviceGetMemoryInfo(gpu).used)
        except nvml.NVMLError as error:
            raise Unavailable(reason(error.value, str(error))) from error

    def taken_by(self, uuid: str, process: int) -> int | None:
        nvml = self._nvml
        try:
            gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
            running = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        except nvml.NVMLError:  # not supported for parts of GPUs and in virtual machines
            return None
        return next((each.usedGpuMemory for each in running if each.pid == process), None)

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _usable(self, whole: Any, index: int) -> list[Gpu]:
        """The GPU, or its parts if it is divided. A container that was given one part may not ask
        for the memory of the whole GPU."""
        nvml = self._nvml
        try:
            is_divided = nvml.nvmlDeviceGetMigMode(whole)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        except nvml.NVMLError:  # this GPU cannot be divided
            is_divided = False
        if not is_divided:
            return [self._gpu(whole, index)]
        return [self._gpu(part, index, whole) for part in self._parts(whole)]

    def _parts(self, whole: Any) -> Iterable[Any]:
        """The first compute instance of each GPU instance, because CUDA shows no others."""
        nvml = self._nvml
        parts: dict[int, Any] = {}
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole)):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, place)
                parts.setdefault(nvml.nvmlDeviceGetGpuInstanceId(part), part)
            except nvml.NVMLError:  # none there, or not for this container
                continue
        return parts.values()

    def _gpu(self, handle: Any, index: int, whole: Any = None) -> Gpu:
        nvml = self._nvml
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(whole or handle)
        return Gpu(
            index,
            str(nvml.nvmlDeviceGetUUID(handle)),
            str(nvml.nvmlDeviceGetName(handle)),
            int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            (major, minor),
        )
