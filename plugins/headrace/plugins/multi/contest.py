"""Which device of AUTO is the fastest for a network, and when to measure that. Pure.

Times are arguments, in seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from headrace.runtime.execution.request_shapes import RequestShapes, Shapes

WORTH: Final = 1.02
"""How much faster another device must be to take over. A smaller gain may be noise."""
FIRST_SECONDS: Final = 2.0
"""How long after its load a network is measured at the earliest."""
BETWEEN_SECONDS: Final = 60.0
"""The least time from one measurement to the next. So AUTO changes its mind no more often."""
SHOWN_REQUESTS: Final = 16
"""So many requests of other shapes make a network be measured again."""
_MOST_MEASURED: Final = 16
_LONGEST_PAUSE_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What is known of one device for some shapes.

    Attributes:
        latency_seconds: of one request alone; None if it was not measured.
        requests_per_second: with all its streams full.
        why: why it was or was not chosen.
    """

    device: str
    latency_seconds: float | None = None
    requests_per_second: float | None = None
    chosen: bool = False
    why: str = ""

    def cost(self, *, throughput: bool) -> float:
        """What counts, the less the better; infinite if it was not measured."""
        if self.latency_seconds is None or not self.requests_per_second:
            return math.inf
        return 1 / self.requests_per_second if throughput else self.latency_seconds

    def __str__(self) -> str:
        if self.latency_seconds is None or self.requests_per_second is None:
            return f"{self.device}: {self.why}"
        text = f"{self.device} {self.latency_seconds * 1e3:.3g} ms alone, "
        return f"{text}{float(f'{self.requests_per_second:.3g}'):g} requests/s"


def decided(
    measured: Sequence[DeviceSpeed], present: str, *, throughput: bool
) -> tuple[DeviceSpeed, ...]:
    """The candidates with the one that is to serve. It is the fastest one, but the present one
    stays if it is nearly as fast, or if it could not be measured: then nothing compares with it."""
    costs = {each.device: each.cost(throughput=throughput) for each in measured}
    best = min(costs, key=lambda device: costs[device], default=present)
    here = costs.get(present, math.inf)
    if math.isinf(here) or here < costs[best] * WORTH:
        best = present
    kind = "throughput" if throughput else "latency"

    def why(each: DeviceSpeed) -> str:
        if math.isinf(costs[each.device]):
            return each.why
        if math.isinf(here):
            return f"{present} serves and was not measured, so nothing compares with it"
        other = present if each.device == best else best
        if each.device == other:
            return f"no other one is {WORTH:g} times as fast, by {kind}"
        return f"{costs[other] / costs[each.device]:.2f} times as fast as {other}, by {kind}"

    return tuple(
        replace(each, chosen=each.device == best, why=why(each) or "not measured")
        for each in measured
    )


def averaged(traffic: Sequence[tuple[int, Sequence[DeviceSpeed]]]) -> tuple[DeviceSpeed, ...]:
    """What is known of each device for requests of several shapes. Otherwise the shapes that came
    most in the last minute would decide alone, and the choice would change with every mixture.

    Args:
        traffic: for each of the shapes how many requests had them, and what was measured. The
            devices are those of the first.
    """
    requests = sum(count for count, _ in traffic)
    by_shape = [(count, {row.device: row for row in rows}) for count, rows in traffic]

    def average(row: DeviceSpeed) -> DeviceSpeed:
        latency = pause = 0.0
        for count, rows in by_shape:
            found = rows.get(row.device, row)
            if found.latency_seconds is None or not found.requests_per_second:
                return found
            latency += count * found.latency_seconds / requests
            pause += count / found.requests_per_second / requests
        return replace(row, latency_seconds=latency, requests_per_second=1 / pause)

    return tuple(average(row) for row in traffic[0][1]) if len(traffic) > 1 else (*traffic[0][1],)


def chosen(decision: Sequence[DeviceSpeed], present: str) -> str:
    """The device that `decided` has chosen. The present one stays even if it is not among them."""
    return next((each.device for each in decision if each.chosen), present)


def to_texts(candidates: Sequence[DeviceSpeed]) -> list[str]:
    """The metric CANDIDATES."""
    return [json.dumps(asdict(each)) for each in candidates]


class Agenda:
    """Says which shapes of a network are measured, and when. Not thread-safe.

    Args:
        shapes: of all requests. Those since the latest measurement count.
        now: when it was loaded.
    """

    def __init__(self, shapes: RequestShapes, now: float) -> None:
        self._shapes = shapes
        self._before: dict[Shapes, int] = {}  # as they were at the latest measurement
        self._measured: dict[Shapes, tuple[DeviceSpeed, ...]] = {}
        self._valid: Shapes | None = None  # the shapes whose measurement the choice follows
        self._left_out: Shapes | None = None  # those for which a device could not be measured yet
        self.pause = FIRST_SECONDS
        self.due = now + FIRST_SECONDS

    def wanted(self) -> Shapes | None:
        """The shapes to measure, or to choose for, when it is due; None for none."""
        news = self._news()
        return self._left_out if news is None else news

    def _news(self) -> Shapes | None:
        """The shapes that the choice does not follow yet."""
        fixed, seen = self._shapes.fixed, self._seen()
        if fixed is not None:
            return None if self._valid == fixed else fixed
        if not seen:
            return None
        shapes, count = max(seen.items(), key=lambda each: each[1])
        if shapes == self._valid or (self._valid is not None and count < SHOWN_REQUESTS):
            return None
        return shapes

    def known(self, shapes: Shapes) -> tuple[DeviceSpeed, ...]:
        """What was measured for these shapes before; empty if it is to be measured again."""
        return () if shapes == self._left_out else self._measured.get(shapes, ())

    def traffic(
        self, shapes: Shapes, found: Sequence[DeviceSpeed]
    ) -> list[tuple[int, Sequence[DeviceSpeed]]]:
        """How many requests have had each of the shapes that were measured, and what was. These
        shapes, of which this was found, are the first."""
        seen = self._seen()
        others = [
            (seen[each], rows)
            for each, rows in self._measured.items()
            if each != shapes and each in seen
        ]
        return [(seen.get(shapes, 1), found), *others]

    def _seen(self) -> dict[Shapes, int]:
        """How many requests have had each of the shapes since the latest measurement. If the shapes
        have begun anew since, because there were too many, all of them count."""
        counts = {
            shapes: count - before if count >= (before := self._before.get(shapes, 0)) else count
            for shapes, count in self._shapes.seen().items()
        }
        return {shapes: count for shapes, count in counts.items() if count}

    def looked(self, now: float) -> None:
        """Nothing was to be measured."""
        self.due = now + (BETWEEN_SECONDS if self._valid is not None else FIRST_SECONDS)

    def disturbed(self, now: float) -> None:
        """Requests came, or a device was still being loaded. The next attempt waits longer."""
        self.due = now + self.pause
        self.pause = min(2 * self.pause, _LONGEST_PAUSE_SECONDS)

    def measured(
        self, shapes: Shapes, found: Sequence[DeviceSpeed], now: float, *, whole: bool = True
    ) -> None:
        """A measurement has ended. The choice follows it. The more shapes were measured, the later
        is the next one, so that ever new shapes do not keep the machine busy.

        Args:
            whole: whether no device was left out for a reason that may pass.
        """
        is_new = shapes not in self._measured
        while len(self._measured) >= _MOST_MEASURED:
            del self._measured[next(iter(self._measured))]
        self._measured[shapes] = tuple(found)
        self._valid, self.pause = shapes, FIRST_SECONDS
        self._before = self._shapes.seen()
        self._left_out = None if whole else shapes
        self.due = now + BETWEEN_SECONDS * (len(self._measured) if is_new else 1)
        if not whole:
            self.due = max(self.due, now + _LONGEST_PAUSE_SECONDS)

    def forget(self) -> None:
        """A device has come back or has loaded the network: what was measured may not hold."""
        self._measured.clear()
        self._valid = self._left_out = None
