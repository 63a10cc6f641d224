"""The server's process in the status document, under the names of Prometheus's process metrics."""

from __future__ import annotations

import os
import threading
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector

from headrace.runtime.system.memory_limit import memory_limit
from headrace.runtime.system.processors import usable_processors

_COLLECTOR = ProcessCollector(registry=CollectorRegistry())


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
    memory = memory_limit()
    return {
        "pid": os.getpid(),
        "cpu_seconds_total": own.get("cpu_seconds_total"),
        "processors": usable_processors(),
        "threads": threading.active_count(),
        "memory_limit_bytes": memory.limit if memory is not None else None,
        **numbers,
    }
