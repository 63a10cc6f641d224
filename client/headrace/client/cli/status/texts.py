"""Numbers of a status document in a few characters, and its first lines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from headrace.client import RepositoryVersion
from headrace.client.cli.status.figures import Document, NetworkFigures, Times
from headrace.client.cli.texts import bytes_text, visible

UNKNOWN: Final = "-"
_SHORT: Final = 40


def seconds_text(seconds: float | None) -> str:
    """A duration, as ``12 µs``, ``3.4 ms``, ``1.2 s`` or ``5 min``."""
    if seconds is None:
        return UNKNOWN
    for most, unit, factor in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3), (120.0, "s", 1.0)):
        if seconds < most:
            value = seconds * factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return long_text(seconds)


def networks_text(match: str) -> str:
    """What is listed: the networks, or those that ``--match`` chooses."""
    return f"networks whose names contain {visible(match, _SHORT)!r}" if match else "networks"


def long_text(seconds: float) -> str:
    """A long time, as ``5 min``, ``3 h 12 min`` or ``9 d 4 h``."""
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 60 * 24:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes // 60 % 24} h"


def rate_text(rate: float) -> str:
    """A number a second."""
    return f"{rate:,.0f}" if rate >= 100 or rate == 0 else f"{rate:.1f}"


def of_text(part: int | None, whole: int | None) -> str:
    """A part of a whole, as ``3/1024``."""
    return UNKNOWN if part is None or whole is None else f"{part}/{whole}"


def times_text(times: Times) -> tuple[str, str, str]:
    """Mean, median and 99th percentile."""
    return seconds_text(times.mean), seconds_text(times.p50), seconds_text(times.p99)


def memory_text(taken: int) -> str:
    """What a network takes in memory."""
    return bytes_text(taken) if taken else UNKNOWN


def residence_text(network: NetworkFigures | RepositoryVersion) -> tuple[str, str]:
    """What it takes in memory, and for how long nobody has used it."""
    return memory_text(network.memory_bytes), seconds_text(network.idle_seconds)


def shadow_text(shadow: Document | None) -> str:
    """A network's shadow, as ``version 3, 5 %: 12 equal, 1 differs``."""
    if shadow is None:
        return UNKNOWN
    where = f"version {shadow['version']}" if shadow["version"] else shadow["device"]
    counts = [f"{count:.0f} {outcome}" for outcome, count in shadow["requests"].items() if count]
    return f"{where}, {shadow['percent']} %: {', '.join(counts) or 'none yet'}"


def time_text(stamp: float) -> str:
    """A time of day in UTC."""
    return f"{datetime.fromtimestamp(stamp, UTC):%H:%M:%S}"


def server_lines(document: Document) -> list[str]:
    """The state of the server and of its process, in a few lines."""
    server, process = document["server"], document["process"]
    lines = [
        f"headrace {visible(server['version'], _SHORT)}: {visible(server['state'], _SHORT)}, "
        f"up {long_text(server['uptime_seconds'])}, at {visible(server['grpc'], _SHORT)}, "
        f"HTTP at {visible(server['http'], _SHORT)}, process {process['pid']}"
    ]
    limit = process["memory_limit_bytes"]
    memory = bytes_text(int(process["resident_memory_bytes"] or 0))
    memory += f" of {bytes_text(int(limit))}" if limit else ""
    files = of_text(process["open_fds"], process["max_fds"])
    lines.append(
        f"memory {memory}, files {files}, threads {process['threads']}, "
        f"processors {process['processors']}"
    )
    if certificate := document["certificate"]:
        left = certificate["expires"] - document["time"]
        when = f"in {long_text(left)}" if left > 0 else "HAS EXPIRED"
        stale = "; ITS FILES HAVE CHANGED AND ARE REFUSED" if certificate["stale"] else ""
        lines.append(
            f"certificate expires {when}{stale}" if left > 0 else f"certificate {when}{stale}"
        )
    return lines
