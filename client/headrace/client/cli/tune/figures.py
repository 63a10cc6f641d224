"""What callers see of a network: how much it answers, and how late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

MOST_CALLERS: Final = 256
_GAIN: Final = 1.05
"""What more callers have to bring, for still more to be tried."""


class CallersFigures(NamedTuple):
    """What so many callers saw.

    Attributes:
        throughput: answers a second.
        p99: seconds; infinite if no request was answered, or one failed.
    """

    callers: int
    throughput: float
    p99: float

    def score(self, target: float) -> tuple[bool, float]:
        """The greater, the better: the throughput within the target, otherwise the latency."""
        within = self.p99 <= target and math.isfinite(self.p99)
        return within, self.throughput if within else -self.p99


NOTHING: Final = CallersFigures(1, 0.0, math.inf)


def next_callers(
    found: Sequence[CallersFigures],
    start: int,
    target: float,
    before: Sequence[CallersFigures] = (),
) -> int | None:
    """With how many callers to go on: more of them while that brings something, and fewer while
    they miss the target. None if there is nothing more to find.

    Args:
        found: what was found so far, in its order.
        start: how many are tried first.
        target: the 99th percentile that is wanted, in seconds.
        before: what was found in the turn before. Of its numbers none above `start` is tried
            again.
    """
    if not found:
        return min(start, MOST_CALLERS)
    last, earlier = found[-1], found[:-1]
    known = {0, *(each.callers for each in found)}
    if not last.score(target)[0]:
        met = any(each.score(target)[0] for each in earlier)
        callers = 0 if met else last.callers // 2
    else:
        came_down = any(each.callers > last.callers for each in earlier)
        gains = not earlier or last.throughput >= _GAIN * earlier[-1].throughput
        callers = min(2 * last.callers, MOST_CALLERS) if gains and not came_down else 0
        known.update(each.callers for each in before)
    return None if callers in known else callers


def frontier(figures: Sequence[CallersFigures]) -> list[CallersFigures]:
    """Those than which none has both more throughput and less latency, the fastest first."""
    found: list[CallersFigures] = []
    for each in sorted(figures, key=lambda each: (each.p99, -each.throughput)):
        if not found or each.throughput > found[-1].throughput:
            found.append(each)
    return found
