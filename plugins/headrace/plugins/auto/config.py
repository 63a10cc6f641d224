"""The device's configuration."""

from __future__ import annotations

from headrace.runtime.config.schema import ConfigSchema, Key
from headrace.runtime.config.standard_keys import STANDARD_KEYS

STARTUP_FALLBACK = Key(
    "ENABLE_STARTUP_FALLBACK",
    bool,
    True,
    "Whether the processor serves while a better device still compiles the network. NO: the load "
    "waits for the better device.",
)
RUNTIME_FALLBACK = Key(
    "ENABLE_RUNTIME_FALLBACK",
    bool,
    True,
    "Whether another device serves while the chosen one does not work. NO: the network is on the "
    "chosen device alone and takes less memory.",
)
SCHEMA = ConfigSchema(*STANDARD_KEYS, STARTUP_FALLBACK, RUNTIME_FALLBACK)
