"""The device's configuration: the standard keys, one with another default, and one of its own."""

from dataclasses import replace

from headrace.sdk import PERF_COUNT, STANDARD_KEYS, ConfigSchema, Key

_MEANING = "Requests that the device runs at once where NUM_STREAMS is AUTO."
THROUGHPUT_STREAMS = Key(
    "THROUGHPUT_STREAMS", int, 1, _MEANING, minimum=1, maximum=1024, scope="device"
)
SCHEMA = ConfigSchema(*STANDARD_KEYS, replace(PERF_COUNT, default=True), THROUGHPUT_STREAMS)
