"""The device's configuration."""

from __future__ import annotations

from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.config.standard_keys import (
    ALLOW_AUTO_BATCHING,
    AUTO_BATCH_TIMEOUT,
    STANDARD_KEYS,
)
from headrace.runtime.virtual.members import withheld_keys

SCHEMA = ConfigSchema(*STANDARD_KEYS)

DEFAULT_SIZE = 8
"""Rows of a batch if the device's name gives no number."""

NOT_FOR_MEMBERS = withheld_keys(SCHEMA, ALLOW_AUTO_BATCHING, AUTO_BATCH_TIMEOUT)
"""Keys that are not handed to the device that runs the batches."""
