"""The GPUs that CUDA shows to this process, as CUDA's own driver describes them."""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from headrace.runtime.errors import Unavailable

_MAJOR: Final = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
_MINOR: Final = 76
_NAME_BYTES: Final = 256
_UUID_BYTES: Final = 16
_REMEDIES: Final = MappingProxyType(
    {
        100: "; CUDA_VISIBLE_DEVICES may hide the GPUs, or in a container give it the GPUs (--gpus "
        "all)",
        803: "; restart the machine",
    }
)
"""What to do about an error of the driver, by its code."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or a part of one (MIG) that is used like one.

    Attributes:
        memory_bytes: all the memory that it has.
        compute_capability: the generation of its instructions, for example (9, 0).
    """

    uuid: str
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]

    @property
    def architecture(self) -> str:
        """The architecture that compiled kernels depend on, for example ``sm_90``."""
        return "sm_{}{}".format(*self.compute_capability)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """OPTIMIZATION_CAPABILITIES."""
        later = ("BF16",) if self.compute_capability >= (8, 0) else ()
        return ("FP32", "FP16", *later, "FP64")


def gpus(driver: Any) -> list[Gpu]:
    """The GPUs in CUDA's order, so that a GPU's place is its CUDA id. CUDA heeds
    CUDA_VISIBLE_DEVICES, and of a divided GPU it shows the parts.

    Args:
        driver: CUDA's driver library, libcuda.so.1.

    Raises:
        Unavailable: CUDA does not start, or shows no GPU; gives its reason.
    """
    count = ctypes.c_int()
    _check(driver, driver.cuInit(0))
    _check(driver, driver.cuDeviceGetCount(ctypes.byref(count)))
    if not count.value:
        raise Unavailable(f"CUDA shows no GPU{_REMEDIES[100]}")
    return [_gpu(driver, number) for number in range(count.value)]


def _gpu(driver: Any, number: int) -> Gpu:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    major, minor = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    own, whole = (ctypes.create_string_buffer(_UUID_BYTES) for _ in range(2))
    for code in (
        driver.cuDeviceGet(ctypes.byref(device), number),
        driver.cuDeviceGetName(name, _NAME_BYTES, device),
        driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device),
        driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device),
        driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device),
        driver.cuDeviceGetUuid(whole, device),
        driver.cuDeviceGetUuid_v2(own, device),
    ):
        _check(driver, code)
    kind = "GPU" if own.raw == whole.raw else "MIG"
    return Gpu(
        f"{kind}-{uuid.UUID(bytes=own.raw)}",
        name.value.decode(),
        memory.value,
        (major.value, minor.value),
    )


def _check(driver: Any, code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        described = (text.value or b"unknown error").decode()
        raise Unavailable(
            f"CUDA does not start: {described} (CUDA error {code}){_REMEDIES.get(code, '')}"
        )
