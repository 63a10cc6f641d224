"""Whether the server takes no more after the load than before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

SHARE = 0.05
"""How much more a process may take in the end."""
FEW = 3
"""So many descriptors or threads more are no leak: a connection is about to be closed."""


class Sample(NamedTuple):
    """What one process takes at one time."""

    at: float
    process: str
    bytes: int
    descriptors: int
    threads: int


Reading = Mapping[str, Sample]
"""A quiet moment: each process's medians."""


def compared(readings: Sequence[Reading], process: str, what: str) -> tuple[float, float]:
    """The medians of the first and of the last third of the quiet moments."""
    values = [float(getattr(each[process], what)) for each in readings if process in each]
    third = max(len(values) // 3, 1)
    return median(values[:third]), median(values[-third:])


def growth(readings: Sequence[Reading]) -> list[str]:
    """What has grown by more than it may. A process that takes less is fine."""
    wrong = []
    for process in sorted({name for each in readings for name in each}):
        for what, few in (("bytes", 0), ("descriptors", FEW), ("threads", FEW)):
            before, after = compared(readings, process, what)
            if after > before * (1 + SHARE) + few:
                wrong.append(
                    f"{process} has {after:,.0f} {what} in the end and {before:,.0f} in the "
                    f"beginning: {after / before - 1:+.1%}"
                )
    return wrong
