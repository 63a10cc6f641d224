"""The memory of this process."""

from __future__ import annotations

from pathlib import Path

_ROLLUP = Path("/proc/self/smaps_rollup")


def proportional_bytes(source: Path = _ROLLUP) -> int:
    """The proportional set size: what the process has in memory, and of pages that it shares its
    part. 0 if the system does not say."""
    try:
        lines = source.read_text().splitlines()
    except OSError:
        return 0
    found = (line.split()[1] for line in lines if line.startswith("Pss:"))
    return int(next(found, "0")) * 1024
