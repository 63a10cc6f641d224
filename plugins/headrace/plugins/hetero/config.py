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
PRIORITY, MEASURED = "PRIORITY", "MEASURED"
PLACEMENT = Key(
    "PLACEMENT",
    str,
    PRIORITY,
    "Which device gets a layer. PRIORITY: the first one of the list that runs it. MEASURED: the "
    "load also runs the network on each device alone, and split where measured layers and copies "
    "cost least, and keeps what is fastest. A network with affinities is split by them.",
    choices=(PRIORITY, MEASURED),
)
SCHEMA = ConfigSchema(*STANDARD_KEYS, TARGET_FALLBACK, MERGE_ISLANDS, PLACEMENT)
