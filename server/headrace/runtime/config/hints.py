"""Chooses streams and threads for a PERFORMANCE_HINT, from the machine's processors and the
network.

For throughput: one stream with one thread on each processor. For the latency of one request: all
processors in one stream, if the network has work for them: a thread that is woken for less than 10
million multiply-adds costs more than it saves. Measured with ONNX Runtime, two threads against one:
0.6 to 0.8 times as fast at 0.3 to 0.6 million, 0.9 at 2 to 17 million, even from 30 million on
where both processors are busy, and 1.8 times with idle ones (ResNet-50). So a tiny network runs on
one thread a stream, and the processors that are left take other requests.

How many processors there are follows the control group's quota and the affinity mask. What is given
explicitly wins.
"""

from __future__ import annotations

from typing import Final

from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import (
    INFERENCE_NUM_THREADS,
    NUM_STREAMS,
    PERFORMANCE_HINT,
    PERFORMANCE_HINT_NUM_REQUESTS,
)
from headrace.runtime.system.processors import usable_processors

MULTIPLY_ADDS_A_THREAD: Final = 10_000_000
"""The multiply-adds of one inference for which it pays to wake a thread."""


def auto_streams(config: Configuration, work: int | None = None) -> int:
    """The number of streams that NUM_STREAMS=AUTO stands for. For latency there are so few that a
    run gets all threads that it has work for. Otherwise there is one for each thread, but no more
    than the client has requests in flight.

    Args:
        work: multiply-adds of one inference; None if they are not known, or for the device as such.
    """
    streams = threads(config)
    if config.get(PERFORMANCE_HINT) == "LATENCY":
        streams -= _worth(work, streams) - 1
    requests = config.get(PERFORMANCE_HINT_NUM_REQUESTS)
    return min(requests, streams) if requests else streams


def streams(config: Configuration, work: int | None = None) -> int:
    """Requests of a network with this configuration that run at once, if the device allows it."""
    return config.get(NUM_STREAMS) or auto_streams(config, work)


def threads(config: Configuration) -> int:
    """Threads of all streams together, at most."""
    return config.get(INFERENCE_NUM_THREADS) or usable_processors()


def threads_of_a_run(config: Configuration, at_once: int, work: int | None = None) -> int:
    """Threads that one run may use, where `at_once` run at the same time and share helpers.

    A run takes its stream's own thread, and helpers from a pool that all runs share. With as many
    helpers as threads are left over, no more than the threads allowed are ever busy, and none is
    idle while a run can use it. Unless their number was given, a run has no more than it has work
    for.
    """
    left_over = max(1, threads(config) - at_once + 1)
    if config.get(INFERENCE_NUM_THREADS):
        return left_over
    return _worth(work, left_over)


def chosen(config: Configuration, at_once: int, work: int | None = None) -> Configuration:
    """The configuration with the values that AUTO stands for, as a loaded network shows it.

    Args:
        at_once: streams that the network really has.
    """
    busy = min(threads(config), at_once - 1 + threads_of_a_run(config, at_once, work))
    config_values = {NUM_STREAMS: at_once, INFERENCE_NUM_THREADS: busy}
    values = {key.name: key.format(value) for key, value in config_values.items() if key in config}
    return config.schema.resolve(config.explicit_strings(), values)


def _worth(work: int | None, most: int) -> int:
    """How many threads have work to do."""
    return most if work is None else min(most, max(1, work // MULTIPLY_ADDS_A_THREAD))
