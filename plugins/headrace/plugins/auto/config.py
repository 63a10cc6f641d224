"""The device's configuration."""

from __future__ import annotations

from headrace.runtime.config.schema import ConfigSchema, Key
from headrace.runtime.config.standard_keys import STANDARD_KEYS

STARTUP_FALLBACK = Key(
    "ENABLE_STARTUP_FALLBACK",
    bool,
    True,
    "Whether the processor serves while a better device still compiles the network; otherwise the "
    "load waits for that one.",
)
RUNTIME_FALLBACK = Key(
    "ENABLE_RUNTIME_FALLBACK",
    bool,
    True,
    "Whether another device serves while the chosen one does not work; otherwise the network is "
    "kept on the chosen one alone, and takes less memory.",
)
SCHEMA = ConfigSchema(*STANDARD_KEYS, STARTUP_FALLBACK, RUNTIME_FALLBACK)
