"""Latency over many connections, and what an idle one takes."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from tools.benchmark import bench_connections
from tools.benchmark.bench_connections import (
    CONNECTIONS,
    IDLE,
    SHARE,
    Loops,
    Memory,
    OpenLoop,
)
from tools.benchmark.generator import Missing
from tools.benchmark.report.section import Effort, Goal, Pictures, micros, table
from tools.benchmark.servers import Compared

TITLE = "Many connections"
LOAD_SECONDS = 8.0
MEMORY_ROUNDS = 3
KEPT_UP = 0.9
"""The share of the planned requests a second from which on replies came as fast as requests."""


def measure(effort: Effort) -> Any:
    memory = bench_connections.memory(min(effort.rounds, MEMORY_ROUNDS))
    try:
        loops = bench_connections.open_loops(effort.rounds, LOAD_SECONDS * effort.seconds)
    except Missing as error:
        return {"memory": memory, "loops": None, "missing": str(error)}
    return {"memory": memory, "loops": loops}


def text(found: Any, pictures: Pictures) -> str:
    memory = Memory(*found["memory"])
    echo, ours, _ = memory.kilobytes
    pairs = zip(IDLE, memory.megabytes, strict=True)
    counts = [(f"{count:,}", f"{used:.0f} MB") for count, used in pairs]
    return (
        f"{loop_text(found)}\n"
        f"A server that has just started has {memory.resident:.0f} MB resident. An idle connection "
        f"takes {ours:.0f} KB, and {echo:.0f} KB of a bare echo. This is the server's proportional "
        "set size, which counts pages that others use too in parts; each connection has had one "
        f"reply:\n\n{table(('idle connections', 'memory'), counts)}"
    )


def loop_text(found: Any) -> str:
    if found["loops"] is None:
        return f"Latency was not measured: {found['missing']}.\n"
    loops = loops_of(found)
    loop = loops.ours
    shown: list[tuple[str, Callable[[OpenLoop], str]]] = [
        ("capacity, requests a second", lambda each: f"{each.capacity:,.0f}"),
        ("median latency", lambda each: micros(each.median)),
        ("99th percentile", lambda each: micros(each.p99)),
        ("99th percentile ÷ median", lambda each: f"{each.ratio:.1f}"),
        ("median of the slowest connection", lambda each: micros(each.slowest)),
        ("delay of the load generator itself, 99th percentile", lambda each: micros(each.late)),
        ("processor time of a request", lambda each: micros(each.used)),
        ("the same at capacity", lambda each: micros(each.full)),
    ]
    rows = [(name, *map(show, loops)) for name, show in shown]
    heads = "open loop", "bare echo", "headrace", "the same load as the echo"
    result = (
        "Replies came as fast as requests."
        if kept_up(loop)
        else f"Replies came only {loop.per_second:,.0f} times a second, so requests waited longer "
        "and longer: the server had less of the processors than when its capacity was measured."
    )
    return (
        f"{CONNECTIONS} connections send tiny unary requests at random, independent times, whether "
        f"or not earlier replies have come: {SHARE * loop.capacity:,.0f} a second, "
        f"{SHARE * 100:.0f} % of the {loop.capacity:,.0f} that closed loops on these connections "
        "reached just before. A latency counts from the planned time, and the load generator "
        f"in C++ uses the same processors. {result} The bare echo got {SHARE * 100:.0f} % of its "
        f"own capacity, {SHARE * loops.echo.capacity:,.0f} a second, and headrace got that load, "
        f"too.\n\n{table(heads, rows)}"
    )


def goals(found: Any) -> list[Goal]:
    memory = Memory(*found["memory"])
    kept = [
        Goal("an idle connection", 12, Compared(*memory.kilobytes).ours, " KB"),
        Goal("a server that has just started, resident", 130, memory.resident, " MB"),
    ]
    if found["loops"] is None:
        return kept
    loop = loops_of(found).ours
    where = f"{CONNECTIONS} connections at {SHARE * 100:.0f} % of capacity"
    # When replies come more and more late, all latencies are alike, and their ratios mean nothing.
    ratios = (loop.ratio, loop.slowest / loop.p99) if kept_up(loop) else (inf, inf)
    return [
        Goal(f"{where}: 99th percentile ÷ median", 5, ratios[0]),
        Goal(f"{where}: median of the slowest connection ÷ 99th percentile of all", 1, ratios[1]),
        *kept,
    ]


def loops_of(found: Any) -> Loops:
    return Loops(*(OpenLoop(*each) for each in found["loops"]))


def kept_up(loop: OpenLoop) -> bool:
    """Whether replies came as fast as requests."""
    return loop.per_second >= KEPT_UP * SHARE * loop.capacity
