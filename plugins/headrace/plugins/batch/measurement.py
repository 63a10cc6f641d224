"""Whether running requests together pays, for one network on one device: measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headrace.plugins.batch import runs
from headrace.runtime.cancel import CancelToken
from headrace.runtime.executable_network import ExecutableNetwork
from headrace.runtime.tensor import Value

BUDGET_SECONDS: Final = 1.0
"""Begun rounds are finished; a network that takes so long for one round of each kind that it would
be overdrawn threefold is not measured."""
ROUNDS: Final = 5
BATCHES: Final = (4, 2, 1)
"""Of a round, beside the first request, which runs alone; the most of which three rounds fit."""
PAYS_FROM: Final = 1.1
"""Gain from which batches are worth their longer runs; less may be noise."""


class Comparison(NamedTuple):
    """How much faster the requests were together; 0.0 where one run takes too long to measure."""

    gain: float
    seconds: float

    @property
    def pays(self) -> bool:
        return self.gain >= PAYS_FROM


def compare(
    apart: ExecutableNetwork,
    together: ExecutableNetwork,
    rows: Sequence[Mapping[str, Value]],
    size: int,
    token: CancelToken,
) -> Comparison:
    """Compares the best round of each kind, run in turns so that both see the machine alike.

    Args:
        rows: requests of one row each, for both networks.
        size: rows of a batch.
    """
    begun = time.monotonic()
    one = min(runs.seconds(apart, rows[:1], token) for _ in range(2))
    fitting = [count for count in BATCHES if 6 * one * size * count <= BUDGET_SECONDS]
    batches = fitting[0] if fitting else BATCHES[-1]
    if 2 * one * (size * batches + 1) > 3 * BUDGET_SECONDS:
        return Comparison(0.0, time.monotonic() - begun)
    requests = [rows[at % len(rows)] for at in range(size * batches + 1)]
    best = {apart: float("inf"), together: float("inf")}
    for _ in range(ROUNDS):
        for network in best:
            best[network] = min(best[network], runs.seconds(network, requests, token))
        if time.monotonic() - begun > BUDGET_SECONDS:
            break
    return Comparison(best[apart] / best[together], time.monotonic() - begun)
