"""What a second front end gains."""

from __future__ import annotations

from typing import Any

from tests.benchmark.bench_processes import Figures
from tests.benchmark.bench_processes import measure as measure_processes
from tests.benchmark.report.section import Effort, Goal, Pictures, micros, table

TITLE = "Two front ends"
LOAD_SECONDS = 4.0


def measure(effort: Effort) -> Any:
    return measure_processes(LOAD_SECONDS * effort.seconds, effort.rounds)


def text(found: Any, pictures: Pictures) -> str:
    figures = Figures(*found)
    rows = [
        ("one process", micros(figures.one)),
        ("two front ends and the engine", micros(figures.two)),
        ("of it, the engine", micros(figures.engine)),
    ]
    return (
        "Processor time of all processes of a server for a tiny unary call, on a device that only "
        f"sleeps. On two processors the capacity with two front ends is {figures.gain:.2f} times "
        f"that of one process. [Several processes](#several-processes) explains it.\n\n"
        f"{table(('server', 'a call'), rows)}"
    )


def goals(found: Any) -> list[Goal]:
    gain = Figures(*found).gain
    work = "`--processes 2` on two processors, a device that sleeps: capacity ÷ one process's"
    return [Goal(work, 1.6, gain, at_least=True)]
