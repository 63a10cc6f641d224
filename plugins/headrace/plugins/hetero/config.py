"""The device's configuration."""

from __future__ import annotations

from headrace.runtime.config.schema import ConfigSchema, Key
from headrace.runtime.config.standard_keys import STANDARD_KEYS

TARGET_FALLBACK = Key(
    "TARGET_FALLBACK",
    str,
    "",
    "The devices to split over, the preferred one first, as CPU,TEMPLATE; for the device name "
    "HETERO, without a list of its own.",
)
MERGE_ISLANDS = Key(
    "HETERO_MERGE_ISLANDS",
    bool,
    True,
    "Whether a layer alone between others of another device joins them if that device supports it, "
    "which saves two copies.",
)
SCHEMA = ConfigSchema(*STANDARD_KEYS, TARGET_FALLBACK, MERGE_ISLANDS)
