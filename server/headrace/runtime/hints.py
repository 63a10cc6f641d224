"""What a PERFORMANCE_HINT makes of the machine, for devices that compute on its processors.

Throughput wants one stream with one thread on each processor; one request alone wants all of them
in one stream. How many there are follows the control group's quota and the affinity mask. What is
given explicitly wins.
"""

from __future__ import annotations

from headrace.runtime.config import Configuration
from headrace.runtime.processors import usable_processors
from headrace.runtime.standard_keys import (
    INFERENCE_NUM_THREADS,
    NUM_STREAMS,
    PERFORMANCE_HINT,
    PERFORMANCE_HINT_NUM_REQUESTS,
)


def auto_streams(config: Configuration) -> int:
    """What NUM_STREAMS is where it is AUTO: one for latency, else one a thread, but no more than
    the client keeps in flight."""
    if config.get(PERFORMANCE_HINT) == "LATENCY":
        return 1
    requests = config.get(PERFORMANCE_HINT_NUM_REQUESTS)
    return min(requests, threads(config)) if requests else threads(config)


def streams(config: Configuration) -> int:
    """Requests of a network with this configuration that run at once, if the device allows it."""
    return config.get(NUM_STREAMS) or auto_streams(config)


def threads(config: Configuration) -> int:
    """Threads of all streams together."""
    return config.get(INFERENCE_NUM_THREADS) or usable_processors()


def threads_of_a_run(config: Configuration, at_once: int) -> int:
    """Threads that one run may use, where `at_once` run at the same time and share helpers.

    A run takes its stream's own thread, and helpers from a pool that all runs share. With as many
    helpers as threads are left over, no more than the threads allowed are ever busy, and none is
    idle while a run can use it.
    """
    return max(1, threads(config) - at_once + 1)


def chosen(config: Configuration, at_once: int) -> Configuration:
    """The configuration with what AUTO has become, as a loaded network shows it.

    Args:
        at_once: streams that the network really has.
    """
    found = {NUM_STREAMS: at_once, INFERENCE_NUM_THREADS: threads(config)}
    values = {key.name: key.format(value) for key, value in found.items() if key in config}
    return config.schema.resolve(config.explicit_strings(), values)
