"""How much memory this process and its children may use together, and how much is in use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from headrace.runtime.system.control_groups import groups, read


class MemoryUse(NamedTuple):
    """In bytes.

    Attributes:
        used: by all that shares the limit, without pages that the system can drop.
        free: what nobody uses, not even for such pages.
    """

    used: int
    limit: int
    free: int = 0


class _Files(NamedTuple):
    """The files of a control group with its limit and its use, and the line of ``memory.stat`` with
    the pages of files that were not used for a while."""

    limit: str
    used: str
    droppable: str


_VERSIONS: Final = (
    _Files("memory.max", "memory.current", "inactive_file"),
    _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory_limit(root: Path = Path("/")) -> MemoryUse | None:
    """The smallest limit of the process's control groups. Where none is below the machine's memory,
    the machine's. None if the system does not tell.

    Args:
        root: where /proc and /sys are.
    """
    machine = _machine(root)
    limits = [] if machine is None else [machine]
    for group in groups(root, "memory"):
        limits += [each for files in _VERSIONS if (each := _group(group, files)) is not None]
    return min(limits, key=lambda memory: memory.limit, default=None)


def _machine(root: Path) -> MemoryUse | None:
    facts = _numbers(read(root / "proc/meminfo"))
    total, available = facts.get("MemTotal:"), facts.get("MemAvailable:")
    if total is None or available is None:
        return None
    free = facts.get("MemFree:", 0)
    return MemoryUse((total - available) * 1024, total * 1024, free * 1024)


def _group(group: Path, files: _Files) -> MemoryUse | None:
    limit, used = read(group / files.limit), read(group / files.used)
    if not limit.isdecimal() or not used.isdecimal():  # "max" means no limit
        return None
    droppable = _numbers(read(group / "memory.stat")).get(files.droppable, 0)
    return MemoryUse(max(0, int(used) - droppable), int(limit), max(0, int(limit) - int(used)))


def _numbers(text: str) -> Mapping[str, int]:
    """The first two words of each line."""
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
