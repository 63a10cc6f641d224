"""The device's configuration, and OpenVINO's properties that follow from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from headrace.runtime.config.hints import threads
from headrace.runtime.config.key import Key
from headrace.runtime.config.schema import ConfigSchema, Configuration
from headrace.runtime.config.standard_keys import (
    CPU_BIND_THREAD,
    INFERENCE_PRECISION_HINT,
    STANDARD_KEYS,
)
from headrace.runtime.errors import InvalidArgument

COMPILED_SHAPES: Final = Key(
    "COMPILED_SHAPES",
    int,
    8,
    "Tuples of input shapes that a network is compiled for, at most",
    minimum=1,
    maximum=1024,
)
SHAPES: Final = "SHAPES"
ALL: Final = "ALL"
NO: Final = "NO"
FALLBACK: Final = Key(
    "FALLBACK",
    str,
    SHAPES,
    "What CPU runs: SHAPES that are not compiled, or slower on OpenVINO; ALL: also layers that "
    "OPENVINO does not claim; NO: nothing, and requests wait for compiles",
    choices=(SHAPES, ALL, NO),
)
SCHEMA = ConfigSchema(*STANDARD_KEYS, COMPILED_SHAPES, FALLBACK)
CAPABILITIES: Final = "OPTIMIZATION_CAPABILITIES"
_CAPABILITY: Final[Mapping[str, str]] = MappingProxyType(
    {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}
)


def precision(config: Configuration, device: str, capabilities: Collection[str]) -> str:
    """The type to compute in. It is float32 unless the configuration names another type. OpenVINO
    itself would choose bfloat16 on a processor that has it, and the results would be wrong by half
    a percent. A device without float32, for example an NPU, computes in float16.

    Raises:
        InvalidArgument: the device lacks the type.
    """
    usual = "f32" if _CAPABILITY["f32"] in capabilities else "f16"
    wanted: str = config[INFERENCE_PRECISION_HINT] or usual
    if _CAPABILITY[wanted] not in capabilities:
        raise InvalidArgument(
            f"{device} does not compute in {wanted}; its {CAPABILITIES} are "
            f"{', '.join(capabilities)}",
            field=f"config['{INFERENCE_PRECISION_HINT.name}']",
        )
    return wanted


def properties(
    config: Configuration, wanted_precision: str, settable: Collection[str], at_once: int
) -> dict[str, Any]:
    """OpenVINO's properties for a network that runs `at_once` requests at a time.

    Layers are always timed, so that any request may ask for its profile. Measurements show no cost
    of the timing.

    No layer quantises what it reads. OpenVINO itself would round the floats that a product with
    8-bit or 4-bit constants reads to 8 bits on a processor with the instructions, and results would
    be wrong by a percent.

    Args:
        settable: names of the device's properties; others are left out.
    """
    chosen: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": wanted_precision,
        "PERF_COUNT": True,
        "NUM_STREAMS": at_once,
        "INFERENCE_NUM_THREADS": max(threads(config), at_once),
        "ENABLE_CPU_PINNING": config[CPU_BIND_THREAD],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    return {name: value for name, value in chosen.items() if name in settable}
