"""How many processors this process may use, by its affinity and its control groups' CPU quota.

A container that may use half a machine still sees all of the host's processors. If it had a stream
for each of them, the system would throttle it.
"""

from __future__ import annotations

import math
import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

from headrace.runtime.system.control_groups import groups, read

_SECONDS: Final = 10
"""How long a quota is believed. Finding it takes a dozen files, and each load asks three times."""


def usable_processors(root: Path | None = None, affinity: int | None = None) -> int:
    """How many processors can be kept busy at once, at least 1. A part of one counts as one.

    Args:
        root: where /proc and /sys are; None for those of this process, whose quota may be some
            seconds old.
        affinity: how many processors the process may be scheduled on; None: ask the system.
    """
    processors = _affinity() if affinity is None else affinity
    quota = _recent_quota(int(time.monotonic() // _SECONDS)) if root is None else cpu_quota(root)
    if quota is not None:
        processors = min(processors, math.ceil(quota))
    return max(1, processors)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The smallest CPU quota of the process's control groups, in processors; None: no limit."""
    quotas = [_quota_v2(group) or _quota_v1(group) for group in groups(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


@lru_cache(maxsize=1)
def _recent_quota(_: int) -> float | None:
    return cpu_quota()


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota_v2(group: Path) -> float | None:
    text = read(group / "cpu.max")
    quota, _, period = text.partition(" ")
    return _ratio(quota, period)


def _quota_v1(group: Path) -> float | None:
    return _ratio(read(group / "cpu.cfs_quota_us"), read(group / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """Microseconds of processor time per period; "max", -1 and nothing mean no limit."""
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0 or int(quota) == 0:
        return None
    return int(quota) / int(period)
