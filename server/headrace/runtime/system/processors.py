"""How many processors this process may use: its affinity, and its control groups' CPU quota.

A container with half a machine still sees all of the host's processors; streams sized for those
get throttled. Formats: cgroups(7), and Documentation/admin-guide/cgroup-v2.rst of Linux.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def usable_processors(root: Path = Path("/"), affinity: int | None = None) -> int:
    """Processors that can be kept busy at once, at least 1; part of one counts as one.

    Args:
        root: where /proc and /sys are.
        affinity: how many processors the process may be scheduled on; default: as the system says.
    """
    processors = _affinity() if affinity is None else affinity
    quota = cpu_quota(root)
    if quota is not None:
        processors = min(processors, math.ceil(quota))
    return max(1, processors)


def schedule_as_batch() -> bool:
    """Has the threads that this process starts from now on, and this one, run on when others of
    them wake up (SCHED_BATCH, sched(7)). A request passes through four threads, each of which
    would interrupt the one that works: that took 18 % of the processor time of tiny requests over
    gRPC, and 22 % of those of 600 KB. The price: beside other processes that keep all processors
    busy, a thread that wakes up waits for some milliseconds.

    Returns:
        Whether the system has such a thing, and allows it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):
        return False
    return True


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The tightest CPU quota of the process's control groups, in processors; None: no limit."""
    quotas = [_quota_v2(group) or _quota_v1(group) for group in _groups(root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the control groups that bound this process, each with all of its parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        # "" is version 2, beside version 1 under "unified"; version 1 has "cpu" among the rest.
        if controllers == "":
            hierarchies = [mounts, mounts / "unified"]
        elif "cpu" in controllers.split(","):
            hierarchies = [mounts / controllers, mounts / "cpu"]
        else:
            continue
        # Seen from inside a namespace a path may climb ("/../x"), or name what is not mounted
        # here; the folders that do exist are those that count.
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for hierarchy in hierarchies:
            for depth in range(len(parts), -1, -1):
                yield hierarchy.joinpath(*parts[:depth])


def _quota_v2(group: Path) -> float | None:
    text = _read(group / "cpu.max")
    quota, _, period = text.partition(" ")
    return _ratio(quota, period)


def _quota_v1(group: Path) -> float | None:
    return _ratio(_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """Microseconds of processor time per period; "max", -1 and nothing mean no limit."""
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0 or int(quota) == 0:
        return None
    return int(quota) / int(period)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
