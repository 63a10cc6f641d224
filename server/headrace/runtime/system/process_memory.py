"""The memory of this process, and of those that it has started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def proportional_bytes() -> int:
    """The proportional set size: what this process has in memory, and of pages that it shares its
    part. 0 if the system does not say."""
    return _sizes("self", _PROCESSES).get("Pss:", 0)


def family_bytes(processes: Path = _PROCESSES, process: str = "self") -> int:
    """What a process and all that come from it have in memory and the system cannot drop: their
    anonymous pages. They are counted as they come and go, so that asking takes no longer for a
    large process, which the proportional set size does. 0 if the system does not say."""
    return sum(_anonymous(each, processes) for each in _family(process, processes))


def _anonymous(process: str, processes: Path) -> int:
    try:
        words = (processes / process / "statm").read_text().split()
    except OSError:  # it has ended
        return 0
    return (int(words[1]) - int(words[2])) * _PAGE_BYTES


def _sizes(process: str, processes: Path) -> Mapping[str, int]:
    """The sizes of a process, in bytes. Empty if the system does not say, or it has ended."""
    try:
        lines = (processes / process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines[1:])
    return {each[0]: int(each[1]) * 1024 for each in words}


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
