"""The server's process in the status document, under the names of Prometheus's process metrics."""

from __future__ import annotations

import os
import threading
from pathlib import Path, PurePosixPath
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector

from headrace.runtime.system.processors import usable_processors

_COLLECTOR = ProcessCollector(registry=CollectorRegistry())
_NO_LIMIT: Final = 1 << 60
"""Version 1 of control groups writes a number like 2^63 for no limit."""


def process_facts() -> dict[str, Any]:
    """The numbers of the process itself, without the processes of isolated devices."""
    own = {
        sample.name.removeprefix("process_"): sample.value
        for metric in _COLLECTOR.collect()
        for sample in metric.samples
    }
    numbers: dict[str, Any] = {
        name: int(own[name])
        for name in ("resident_memory_bytes", "virtual_memory_bytes", "open_fds", "max_fds")
        if name in own
    }
    return {
        "pid": os.getpid(),
        "cpu_seconds_total": own.get("cpu_seconds_total"),
        "processors": usable_processors(),
        "threads": threading.active_count(),
        "memory_limit_bytes": memory_limit(),
        **numbers,
    }


def memory_limit(root: Path = Path("/")) -> int | None:
    """The memory in bytes that the process's control groups allow. None if there is no limit.

    Args:
        root: where /proc and /sys are.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # "" is version 2. Inside a namespace, a path may start with "..", or not be mounted here.
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        if controllers == "":
            group, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            group, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        limits += (_limit(group.joinpath(*parts[:depth], name)) for depth in range(len(parts) + 1))
    return min((limit for limit in limits if 0 < limit < _NO_LIMIT), default=None)


def _limit(file: Path) -> int:
    """The number in the file, or 0."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
