"""A status document of a server that a test makes up."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

BOUNDS = [0.001, 0.01, 0.1, 1.0]


class StatusDocument:
    """One device and one network that have done nothing. Tests change `facts`."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {
            "time": 1000.0,
            "bounds": {"seconds": BOUNDS, "rows": [1.0]},
            "server": {
                "version": "0.1.0",
                "python": "3.11.2",
                "state": "ready",
                "started": 900.0,
                "uptime_seconds": 100.0,
                "grpc": "127.0.0.1:9000",
                "http": "127.0.0.1:9001",
                "tls": False,
                "access_control": False,
                "private_networks": False,
            },
            "process": {
                "pid": 7,
                "cpu_seconds_total": 1.0,
                "processors": 2,
                "resident_memory_bytes": 512 << 20,
                "virtual_memory_bytes": 1 << 30,
                "memory_limit_bytes": 2 << 30,
                "open_fds": 34,
                "max_fds": 1024,
                "threads": 23,
            },
            "caller": {"name": "anonymous", "role": "manage"},
            "devices": [device("CPU.0")],
            "networks": [network("m", "CPU.0")],
            "networks_total": 1,
            "networks_left_out": 0,
            "repository": None,
            "errors": [],
            "certificate": None,
            "calls": {"grpc": {}, "http": {}},
            "refused_callers": {},
            "cache": None,
        }

    def document(self) -> dict[str, Any]:
        return deepcopy(self.facts)


def outcomes(completed: int = 0, failed: int = 0) -> dict[str, int]:
    return {"completed": completed, "failed": failed, "cancelled": 0, "expired": 0}


def times(*counts: int, total: float = 0.0) -> dict[str, Any]:
    """A histogram with `counts` in its first buckets."""
    filled = [*counts, *[0] * (len(BOUNDS) + 1 - len(counts))]
    return {"count": sum(counts), "sum": total, "counts": filled}


def device(name: str, **facts: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": name.partition(".")[0],
        "state": "UP",
        "reason": "",
        "full_name": "a processor",
        "backend_version": "1",
        "streams": 2,
        "streams_busy": 0,
        "queue_depth": 0,
        "queue_capacity": 1024,
        "memory_bytes": 0,
        "outages": 0,
        "accepted": 0,
        "requests": outcomes(),
        "parts": outcomes(),
        "refused": {},
        "queue_wait_seconds": times(),
        "execution_seconds": times(),
        **facts,
    }


def network(name: str, device: str, **facts: Any) -> dict[str, Any]:
    return {
        "name": name,
        "version": "1",
        "device": device,
        "execution_devices": [device],
        "state": "ready",
        "reason": "",
        "origin": "client",
        "generation": 1,
        "share": 100,
        "from_cache": False,
        "load_seconds": 0.5,
        "memory_bytes": 0,
        "idle_seconds": 3.0,
        "notes": [],
        "notes_left_out": 0,
        "accepted": 0,
        "in_flight": 0,
        "requests": outcomes(),
        "request_seconds": times(),
        "batch_size": times(),
        "subgraphs": [],
        "subgraphs_left_out": 0,
        "shapes": [],
        "shapes_left_out": 0,
        "shadow": None,
        "series": [],
        **facts,
    }
