"""The device's configuration."""

from __future__ import annotations

from headrace.runtime.config.schema import ConfigSchema, Key
from headrace.runtime.config.standard_keys import DEVICE_ID, STANDARD_KEYS

PRIORITIES = Key(
    "MULTI_DEVICE_PRIORITIES",
    str,
    "",
    "The devices, the preferred one first, each with the number of requests that it gets at once, "
    "such as CPU(4),TEMPLATE(1). Set on the device, it is the list for the device name MULTI "
    "alone.",
    mutable=True,
)
STRICT = Key(
    "STRICT",
    bool,
    False,
    "Whether a load fails if one of the devices does not load the network.",
)
SCHEMA = ConfigSchema(*STANDARD_KEYS, PRIORITIES, STRICT)


def withheld(schema: ConfigSchema) -> frozenset[str]:
    """Keys that a virtual device does not hand to the devices of its list: those of the whole
    device, and its own."""
    standard = {key.name for key in STANDARD_KEYS}
    own = (key.name for key in schema if key.scope != "network" or key.name not in standard)
    return frozenset((*own, DEVICE_ID.name))
