"""The device's configuration."""

from __future__ import annotations

from headrace.runtime.config.schema import ConfigSchema, Key
from headrace.runtime.config.standard_keys import STANDARD_KEYS

WINDOW = Key(
    "PIPELINE_WINDOW",
    int,
    0,
    "How many requests of one pipeline run at once. The others wait before their first step, so "
    "that a fast step does not fill the memory before a slow one. 0: twice as many as fill the "
    "devices of all steps, and at least 16.",
    minimum=0,
)
SCHEMA = ConfigSchema(*STANDARD_KEYS, WINDOW)
