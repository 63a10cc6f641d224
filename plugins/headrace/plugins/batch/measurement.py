"""Measures, within a time budget, whether batches pay for one network on one device.

The smallest useful measurement is done if it takes at most three seconds. A ResNet-50 on one
processor stays within that. A larger measurement takes at most as long as the load took, and at
most one second, so that a hint does not turn a load of one second into ten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from headrace.plugins.batch.claims.trial import ROWS
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.values import Value
from headrace.runtime.virtual import timing

USUAL_SECONDS: Final = 0.25
MOST_SECONDS: Final = 1.0
LEAST_SECONDS: Final = 3.0
"""The longest time that the smallest measurement may take."""
FEWEST_ROUNDS: Final = 2
MOST_ROUNDS: Final = 5
BATCHES: Final = (4, 2, 1)
"""Possible numbers of batches in a round, beside the first request, which runs alone. The largest
number that fits into the time is taken."""
PAYS_FROM: Final = 1.1
"""The least gain at which batches are worth their longer runs. A smaller gain may be noise."""


class Comparison(NamedTuple):
    """How much faster the requests ran together."""

    gain: float
    seconds: float

    @property
    def pays(self) -> bool:
        return self.gain >= PAYS_FROM


def wanted_seconds(load_seconds: float) -> float:
    """The time to spend on the measurement after a load that took `load_seconds`. The smallest
    measurement may take longer."""
    return min(max(load_seconds, USUAL_SECONDS), MOST_SECONDS)


def batches_a_round(one_seconds: float, size: int, wanted: float) -> int:
    """The number of batches in a round of the comparison; 0 if the time is too short for one.

    Args:
        one_seconds: the time of a request that runs alone.
        size: the rows of a batch.
        wanted: the seconds to spend, including the trial that checks whether rows stay apart.
    """

    def seconds(batches: int) -> float:
        compared = 2 * FEWEST_ROUNDS * (size * batches + 1)
        return (2 * ROWS + compared) * one_seconds

    fitting = (count for count in BATCHES if seconds(count) <= wanted)
    return next(fitting, 1 if seconds(1) <= LEAST_SECONDS else 0)


def compare(
    apart: ExecutableNetwork,
    together: ExecutableNetwork,
    requests: Sequence[Mapping[str, Value]],
    left_seconds: float,
    token: CancelToken,
    clock: Callable[[], float] = time.monotonic,
) -> Comparison:
    """Compares the best round of each network. The rounds alternate, so that both networks run
    under the same conditions.

    Args:
        requests: the requests of one round, for both networks.
        left_seconds: the time for the comparison. After the fewest rounds, no round begins that
            would take longer than this in total.
    """
    begun = clock()
    slower, faster = timing.in_turns(
        [partial(timing.seconds, network, requests, token) for network in (apart, together)],
        fewest=FEWEST_ROUNDS,
        most=MOST_ROUNDS,
        left_seconds=left_seconds,
        clock=clock,
    )
    return Comparison(min(slower) / min(faster), clock() - begun)
