"""Other servers in Python, beside headrace."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.benchmark import bench_peers
from tools.benchmark.bench_client import client_load
from tools.benchmark.bench_peers import PEERS
from tools.benchmark.generator import generator
from tools.benchmark.report.section import (
    ECHO_COLOR,
    OUR_COLOR,
    Effort,
    Goal,
    Pictures,
    micros,
    table,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Other servers in Python"
CALLERS = 32
LOAD_SECONDS = 2.0
GOALS = {"KServe SDK": 0.15, "MLServer": 0.12}
OURS = "headrace"
OWN = "headrace, own protocol"
INFER = "headrace, its client's `infer`"


def measure(effort: Effort) -> Any:
    seconds = LOAD_SECONDS * effort.seconds
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        program = stack.enter_context(generator())
        targets = bench_peers.start(stack, Path(folder))
        ours = next(each for each in targets if each.name == OWN)
        names = [*(each.name for each in targets), INFER]
        rounds = []
        for _ in range(effort.rounds):
            (asked,) = bench_peers.rounds_of(CALLERS, targets, program, 1, seconds)
            client = client_load(ours.address, ours.process, "tasks", CALLERS)
            used = [*(each.used for each in asked), client.microseconds]
            rates = [*(each.per_second for each in asked), client.per_second]
            rounds.append((used, rates))
    return {
        name: {
            "used": statistics.median(used[index] for used, _ in rounds),
            "rate": statistics.median(rates[index] for _, rates in rounds),
            "ratios": {
                other: statistics.median(used[index] / used[place] for used, _ in rounds)
                for place, other in enumerate(names)
            },
        }
        for index, name in enumerate(names)
    }


def text(found: Any, pictures: Pictures) -> str:
    echo = next(iter(found))
    rows = [
        (name, micros(each["used"]), f"{each['ratios'][echo]:.2f} E", f"{each['rate']:,.0f}")
        for name, each in found.items()
    ]

    def paint(axes: Axes) -> None:
        names = [name.replace("`", "") for name in found]
        colors = [OUR_COLOR if "headrace" in name else ECHO_COLOR for name in found]
        bars = axes.barh(names, [each["used"] for each in found.values()], color=colors)
        axes.bar_label(bars, fmt="%.0f", padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.set_xlabel("µs of the server's processor time for a tiny request")

    absent = [name for name in PEERS if name not in found]
    left_out = ""
    if absent:
        names = " and ".join(absent)
        left_out = f" `make benchmark-peers` would install {names}, which did not run."
    return (
        f"A tiny request of the Open Inference Protocol, {CALLERS} callers on one connection, and "
        "one load generator in C++. All servers run the same network with ONNX Runtime, except the "
        "echo. The second one is the echo with ONNX Runtime in its handler; it parses nothing. The "
        f"last row is headrace's own client in Python, with {CALLERS} tasks."
        f"{left_out}\n\n"
        f"{table(('server', 'processor time', 'ratio', 'requests a second'), rows)}\n"
        f"{pictures.draw('peers', 'Processor time of a tiny request by server', paint, (6.4, 2.6))}"
    )


def goals(found: Any) -> list[Goal]:
    ratios = found[OURS]["ratios"]
    return [
        Goal(f"tiny ModelInfer requests, {CALLERS} callers: ÷ {name}", goal, ratios[name])
        for name, goal in GOALS.items()
        if name in ratios
    ]
