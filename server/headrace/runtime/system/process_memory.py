"""The memory of this process, and of those that it has started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")


def proportional_bytes() -> int:
    """The proportional set size: what this process has in memory, and of pages that it shares its
    part. 0 if the system does not say."""
    return _sizes("self", _PROCESSES).get("Pss:", 0)


def family_bytes(processes: Path = _PROCESSES, process: str = "self") -> int:
    """What a process and all that come from it have in memory and the system cannot drop: their
    proportional set size without pages of files. 0 if the system does not say."""
    return sum(_held(each, processes) for each in _family(process, processes))


def _held(process: str, processes: Path) -> int:
    sizes = _sizes(process, processes)
    return sizes.get("Pss:", 0) - sizes.get("Pss_File:", 0)


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
