"""The memory of this process, and of those that it has started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")


def proportional_bytes(process: str = "self", processes: Path = _PROCESSES) -> int:
    """The proportional set size: what a process has in memory, and of pages that it shares its
    part. 0 if the system does not say, or the process has ended."""
    try:
        lines = (processes / process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    found = (line.split()[1] for line in lines if line.startswith("Pss:"))
    return int(next(found, "0")) * 1024


def family_bytes(processes: Path = _PROCESSES) -> int:
    """The proportional set size of this process and of all that come from it."""
    return sum(proportional_bytes(each, processes) for each in _family("self", processes))


def _family(process: str, processes: Path) -> Iterator[str]:
    yield process
    try:
        threads = [*(processes / process / "task").iterdir()]
    except OSError:  # it has ended, or no descriptor is left
        return
    for thread in threads:
        try:
            children = (thread / "children").read_text().split()
        except OSError:  # it has ended
            continue
        for child in children:
            yield from _family(child, processes)
