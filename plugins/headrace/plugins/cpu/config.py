"""The device's configuration, and what it makes of streams and threads."""

from __future__ import annotations

from dataclasses import replace

from headrace.runtime.config import ConfigSchema, Configuration
from headrace.runtime.processors import usable_processors
from headrace.runtime.standard_keys import (
    INFERENCE_NUM_THREADS,
    INFERENCE_PRECISION_HINT,
    NUM_STREAMS,
    PERFORMANCE_HINT,
    PERFORMANCE_HINT_NUM_REQUESTS,
    STANDARD_KEYS,
)

# The backend computes no float32 network in another type; f16 leaves a float16 one as it is.
SCHEMA = ConfigSchema(*STANDARD_KEYS, replace(INFERENCE_PRECISION_HINT, choices=("f32", "f16", "")))


def auto_streams(config: Configuration) -> int:
    """What NUM_STREAMS is where it is AUTO: one for latency, else one a thread, but no more than
    the client keeps in flight."""
    if config[PERFORMANCE_HINT] == "LATENCY":
        return 1
    requests = config[PERFORMANCE_HINT_NUM_REQUESTS]
    return min(requests, _threads(config)) if requests else _threads(config)


def streams(config: Configuration) -> int:
    """Requests of a network with this configuration that run at once, if the device allows it."""
    return config[NUM_STREAMS] or auto_streams(config)


def threads_of_a_run(config: Configuration, at_once: int) -> int:
    """Threads that one run may use, where `at_once` run in one session.

    A run takes its stream's own thread, and helpers from a pool that the session's runs share. With
    as many helpers as threads are left over, no more than the threads allowed are ever busy, and
    none is idle while a run can use it.
    """
    return max(1, _threads(config) - at_once + 1)


def _threads(config: Configuration) -> int:
    """Threads of all streams together."""
    return config[INFERENCE_NUM_THREADS] or usable_processors()
