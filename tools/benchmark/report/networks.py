"""Networks of usual sizes over the wire, beside ONNX Runtime in a process of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tools.benchmark.bench_networks import CALLERS, CASES, Figures
from tools.benchmark.bench_networks import measure as measure_cases
from tools.benchmark.report.section import Effort, Goal, Pictures, micros, table
from tools.benchmark.servers import Compared, headrace

TITLE = "Networks beside ONNX Runtime alone"
LOAD_SECONDS = 4.0
"""How long one load takes at full effort. It is long because a network of 100 ms answers seldom."""


def measure(effort: Effort) -> Any:
    seconds = LOAD_SECONDS * effort.seconds
    with tempfile.TemporaryDirectory() as folder, headrace() as server:
        measured = measure_cases(*server, Path(folder), effort.rounds, seconds)
        return {case.title: figures for case, figures in measured}


def figures(found: Any) -> dict[str, Figures]:
    return {name: Figures(*(Compared(*each) for each in three)) for name, three in found.items()}


def text(found: Any, pictures: Pictures) -> str:
    rows = [
        (
            name,
            micros(processor.floor),
            micros(processor.ours),
            f"{processor.ratio:.2f}",
            micros(bare.floor),
            f"{bare.ratio:.2f}",
            f"{rate.floor:.1f}",
            f"{rate.ours:.1f}",
        )
        for name, (processor, rate, bare) in figures(found).items()
    ]
    head = (
        "network and input",
        "alone",
        "headrace",
        "ratio",
        "bare server",
        "ratio",
        "alone",
        "headrace",
    )
    return (
        "Processor time of a request, and requests a second. ONNX Runtime runs alone in a program "
        f"with one thread for each processor. The server gets the images over gRPC from {CALLERS} "
        "callers on the same processors: their time is not in the processor time, but makes the "
        "requests a second fewer. The bare server is grpc.aio with ONNX Runtime on as many threads "
        "and for the same callers; it parses and checks nothing. Weights are random. uint8 images "
        "are [scaled](../use/clients.md#preprocessing) by the server, and by the network's first "
        f"layers in the program.\n\n{table(head, rows)}"
    )


def goals(found: Any) -> list[Goal]:
    measured = figures(found)
    return [
        Goal(f"{title}: processor time ÷ in-process", case.goal, measured[title].processor.ratio)
        for case in CASES
        for title in [case.title]
    ]
