"""Whether running requests together pays, for one network on one device: measured, within a budget.

The least that tells something is done if it takes three seconds at most, which it does for a
ResNet-50 on one processor; more of it only for as long as the load took, and for one second, so
that a hint does not make a load of a second one of ten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.plugins.batch.trials import runs
from headrace.plugins.batch.trials.trial import ROWS
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.values import Value

USUAL_SECONDS: Final = 0.25
MOST_SECONDS: Final = 1.0
LEAST_SECONDS: Final = 3.0
"""That the least may take."""
FEWEST_ROUNDS: Final = 2
MOST_ROUNDS: Final = 5
BATCHES: Final = (4, 2, 1)
"""Of a round, beside the first request, which runs alone; the most that fit are taken."""
PAYS_FROM: Final = 1.1
"""Gain from which batches are worth their longer runs; less may be noise."""


class Comparison(NamedTuple):
    """How much faster the requests were together."""

    gain: float
    seconds: float

    @property
    def pays(self) -> bool:
        return self.gain >= PAYS_FROM


def wanted_seconds(load_seconds: float) -> float:
    """The time to spend, if it is enough for the least, on what a load took so long for."""
    return min(max(load_seconds, USUAL_SECONDS), MOST_SECONDS)


def batches_a_round(one_seconds: float, size: int, wanted: float) -> int:
    """How many batches a round of the comparison has; 0 if there is no time for one.

    Args:
        one_seconds: that a request takes alone.
        size: rows of a batch.
        wanted: seconds, those of the trial of whether rows stay apart included.
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
    """Compares the best round of each kind, run in turns so that both see the machine alike.

    Args:
        requests: of one round, for both networks.
        left_seconds: beyond the fewest rounds, none is begun that would take longer.
    """
    begun = clock()
    best = {apart: float("inf"), together: float("inf")}
    for number in range(1, MOST_ROUNDS + 1):
        round_begun = clock()
        for network in best:
            best[network] = min(best[network], runs.seconds(network, requests, token))
        now = clock()
        if number >= FEWEST_ROUNDS and now - begun + now - round_begun > left_seconds:
            break
    return Comparison(best[apart] / best[together], clock() - begun)
