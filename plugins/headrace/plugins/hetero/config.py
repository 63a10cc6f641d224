"""The device's configuration."""

from __future__ import annotations

from headrace.runtime.config.schema import ConfigSchema, Key
from headrace.runtime.config.standard_keys import STANDARD_KEYS

TARGET_FALLBACK = Key(
    "TARGET_FALLBACK",
    str,
    "",
    "The devices to split over, the preferred one first, such as CPU,TEMPLATE. It is used for the "
    "device name HETERO without a list.",
)
MERGE_ISLANDS = Key(
    "HETERO_MERGE_ISLANDS",
    bool,
    True,
    "Whether a single layer next to layers of another device joins them if that device supports "
    "it. This saves copies.",
)
SCHEMA = ConfigSchema(*STANDARD_KEYS, TARGET_FALLBACK, MERGE_ISLANDS)
