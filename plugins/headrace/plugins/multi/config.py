"""The device's configuration."""

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
SCHEMA = ConfigSchema(*STANDARD_KEYS, PRIORITIES, STRICT)
