"""The device's configuration."""

from __future__ import annotations

from dataclasses import replace

from headrace.plugins.cpu.backend.custom_ops import CUSTOM_OPS_LIBRARIES
from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.config.standard_keys import INFERENCE_PRECISION_HINT, STANDARD_KEYS

# The backend computes float32 networks in float32 alone; f16 leaves float16 networks as they are.
SCHEMA = ConfigSchema(
    *STANDARD_KEYS,
    replace(INFERENCE_PRECISION_HINT, choices=("f32", "f16", "")),
    CUSTOM_OPS_LIBRARIES,
)
