"""The device's configuration."""

from __future__ import annotations

from dataclasses import replace

from headrace.runtime.config.schema import ConfigSchema, Key
from headrace.runtime.config.standard_keys import (
    INFERENCE_PRECISION_HINT,
    ISOLATION,
    PROCESS,
    STANDARD_KEYS,
)

JIT_CACHE_CAPACITY = Key(
    "JIT_CACHE_CAPACITY",
    int,
    8,
    "Number of input shapes for which a network keeps its kernels. 0: none, and every run is "
    "scheduled again.",
    minimum=0,
    maximum=1024,
)
SCHEMA = ConfigSchema(
    *STANDARD_KEYS,
    replace(INFERENCE_PRECISION_HINT, choices=("f32", "f16", "")),
    replace(ISOLATION, default=PROCESS, choices=(PROCESS,)),
    JIT_CACHE_CAPACITY,
)
