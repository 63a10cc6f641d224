"""The configuration of MULTI and of AUTO."""

from __future__ import annotations

from headrace.runtime.config.schema import ConfigSchema, Key
from headrace.runtime.config.standard_keys import STANDARD_KEYS

PRIORITIES = Key(
    "MULTI_DEVICE_PRIORITIES",
    str,
    "",
    "The devices, the preferred one first, each with the number of requests that it gets at once, "
    "such as CPU(4),TEMPLATE(1). Set on the device, it is the list for the device name MULTI "
    "without a list.",
    mutable=True,
)
STRICT = Key(
    "STRICT",
    bool,
    False,
    "Whether a load fails if one of the devices does not load the network.",
)
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
MEASURED, PRIORITY = "MEASURED", "PRIORITY"
CHOICE = Key(
    "CHOICE",
    str,
    MEASURED,
    "How the device is chosen. MEASURED: while nothing else runs, the network runs on each device, "
    "and the fastest one serves from then on: for one request alone, or for many with "
    "PERFORMANCE_HINT=THROUGHPUT. PRIORITY: the first device of the list that loads it.",
    choices=(MEASURED, PRIORITY),
)
MULTI_SCHEMA = ConfigSchema(*STANDARD_KEYS, PRIORITIES, STRICT)
AUTO_SCHEMA = ConfigSchema(*STANDARD_KEYS, CHOICE, STARTUP_FALLBACK, RUNTIME_FALLBACK)
