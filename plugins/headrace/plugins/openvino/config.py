"""The device's configuration, and OpenVINO's properties that follow from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from headrace.runtime.config import ConfigSchema, Configuration
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.hints import threads
from headrace.runtime.standard_keys import (
    CPU_BIND_THREAD,
    INFERENCE_PRECISION_HINT,
    STANDARD_KEYS,
)

SCHEMA = ConfigSchema(*STANDARD_KEYS)
HOST: Final = "CPU"
"""OpenVINO's name of the device that is the host's processors."""
_CAPABILITY: Final[Mapping[str, str]] = MappingProxyType({"bf16": "BF16", "f16": "FP16"})


def precision(config: Configuration, device: str, capabilities: Collection[str]) -> str:
    """The type to compute in: float32 unless another is asked for, for what OpenVINO takes by
    itself (bfloat16 where the processor has it) is wrong by half a percent.

    Raises:
        InvalidArgument: the device lacks the type.
    """
    wanted: str = config[INFERENCE_PRECISION_HINT] or "f32"
    needed = _CAPABILITY.get(wanted)
    if needed is not None and needed not in capabilities:
        raise InvalidArgument(
            f"{device} does not compute in {wanted}; its OPTIMIZATION_CAPABILITIES are "
            f"{', '.join(capabilities)}",
            field=f"config['{INFERENCE_PRECISION_HINT.name}']",
        )
    return wanted


def properties(
    config: Configuration, device: str, capabilities: Collection[str], at_once: int
) -> dict[str, Any]:
    """OpenVINO's properties for a network of which `at_once` requests run at a time.

    Layers are always timed, which no measurement tells from not timing them, so that any request
    may ask for its profile.
    """
    chosen: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": precision(config, device, capabilities),
        "PERF_COUNT": True,
        "NUM_STREAMS": at_once,
    }
    if device == HOST:
        chosen["INFERENCE_NUM_THREADS"] = max(threads(config), at_once)
        chosen["ENABLE_CPU_PINNING"] = config[CPU_BIND_THREAD]
    return chosen
