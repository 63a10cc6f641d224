"""Measures what a request costs and how that grows, and writes it into the manual.

Usage: report.py PAGE PICTURES. PAGE is a Markdown file with two marks; what is between them is
replaced. PICTURES is the folder for the plots. ``make benchmark-report`` runs this. The peers are
measured too if ``make benchmark-peers`` has made their environments.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import matplotlib.pyplot as plt
import numpy as np
import onnx
import psutil
from matplotlib import rcParams
from onnx import TensorProto, helper

from headrace.client import Client
from tests.benchmark import bench_peers
from tests.benchmark.bench_requests import CASES, load_networks, network
from tests.benchmark.servers import HERE, INFER, headrace, load, request, running

BEGIN: Final = "<!-- begin: written by make benchmark-report -->\n"
END: Final = "<!-- end -->\n"
PACKAGES: Final = ("headrace", "grpcio", "protobuf", "uvloop", "numpy", "onnxruntime")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = float(os.environ.get("SECONDS_A_LOAD", "0.7"))
CALLERS = 32
CONNECTIONS: Final = (1, 4, 16, 64, 256)
IN_FLIGHT: Final = (1, 4, 16, 64, 128)
BYTES: Final = (64, 4 << 10, 64 << 10, 600 << 10, 4 << 20)
NETWORKS: Final = (1, 10, 100)
LAYERS: Final = (1, 10, 100, 1000)

Server = tuple[str, psutil.Process]


class Point(NamedTuple):
    """One measurement: processor time of a request in microseconds, medians of all rounds.

    Attributes:
        ratio: the median of the rounds' own ratios.
    """

    echo: float
    ours: float
    ratio: float


class Growth(NamedTuple):
    """How the cost grows with one quantity."""

    name: str
    sizes: Sequence[int]
    points: list[Point]


def compare(
    echo: Server, ours: Server, mode: str, callers: int, message: Path, connections: int = 1
) -> Point:
    """Asks both in turns, so that a round's ratio is of the same seconds."""
    rounds = []
    for _ in range(ROUNDS):
        extra = {"LOAD_CONNECTIONS": str(connections)}
        floor = load(*echo, "/Echo/Echo", callers, message, SECONDS, extra).microseconds
        used = load(*ours, mode, callers, message, SECONDS, extra).microseconds
        rounds.append((floor, used, used / floor))
    return Point(*(statistics.median(column) for column in zip(*rounds, strict=True)))


def chain(layers: int) -> onnx.ModelProto:
    """A network of so many layers, which no optimiser joins."""
    port = helper.make_tensor_value_info
    names = ["x", *(f"t{index}" for index in range(1, layers)), "y"]
    nodes = [
        helper.make_node("Sin" if index % 2 else "Tanh", [before], [after])
        for index, (before, after) in enumerate(pairwise(names))
    ]
    x, y = (port(name, TensorProto.FLOAT, (1, 16)) for name in "xy")
    graph = helper.make_graph(nodes, "chain", [x], [y])
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def growths(echo: Server, ours: Server, folder: Path) -> list[Growth]:
    tiny = folder / "tiny"
    found = [
        Growth(
            f"connections, {max(CALLERS, CONNECTIONS[-1])} callers",
            CONNECTIONS,
            [compare(echo, ours, INFER, CONNECTIONS[-1], tiny, n) for n in CONNECTIONS],
        ),
        Growth(
            "requests in flight, one connection",
            IN_FLIGHT,
            [compare(echo, ours, INFER, callers, tiny) for callers in IN_FLIGHT],
        ),
    ]
    points = []
    with Client(ours[0]) as client:
        for size in BYTES:
            shape, message = (1, size // 4), folder / "bytes"
            message.write_bytes(request("bytes", {"x": np.ones(shape, np.float32)}))
            client.load_network(network("Identity", shape), device="CPU", name="bytes")
            points.append(compare(echo, ours, INFER, 8, message))
            client.network("bytes").unload()
        found.append(Growth("bytes of the tensor, 8 callers", BYTES, points))
        points = []
        for layers in LAYERS:
            message = folder / "layers"
            message.write_bytes(request("layers", {"x": np.ones((1, 16), np.float32)}))
            client.load_network(chain(layers), device="CPU", name="layers")
            points.append(compare(echo, ours, INFER, CALLERS, message))
            client.network("layers").unload()
        found.append(Growth(f"layers of the network, {CALLERS} callers", LAYERS, points))
        points = []
        for count in NETWORKS:
            for number in range(len(client.networks()), count):
                client.load_network(network("Add", (1, 16)), device="CPU", name=f"other{number}")
            points.append(compare(echo, ours, INFER, CALLERS, tiny))
        found.append(Growth(f"networks loaded, {CALLERS} callers", NETWORKS, points))
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. All columns but the first are numbers."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cases_table(echo: Server, ours: Server, messages: dict[str, Path]) -> str:
    rows = []
    for case in CASES:
        # The echo is unary: one stream of requests is held against as many unary calls.
        point = compare(echo, ours, case.mode, case.callers, messages[case.network])
        figures = f"{point.echo:.0f} µs", f"{point.ours:.0f} µs", f"{point.ratio:.2f}"
        rows.append((case.name, *figures))
    return table(("request", "bare echo", "headrace", "ratio"), rows)


def stages_table() -> str:
    command = [sys.executable, str(HERE / "stages.py")]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, dict[str, float]] = json.loads(out)
    names = {"tiny": "tiny network", "large": "600 KB, identity"}
    rows = [(stage, *(f"{found[name][stage]:.0f} µs" for name in names)) for stage in found["tiny"]]
    return table(("stage", *names.values()), rows)


def peers_table(stack: ExitStack, folder: Path) -> str:
    """Empty if the peers are not installed."""
    root = Path(__file__).parents[2]
    if not all((root / f".venv-{each}").exists() for each in bench_peers.PEERS.values()):
        return ""
    program = bench_peers.generator(folder)
    targets = bench_peers.start(stack, folder)
    measured = bench_peers.rounds_of(CALLERS, targets, program)
    rows = []
    for index, target in enumerate(targets):
        used = statistics.median(each[index].microseconds for each in measured)
        rate = statistics.median(each[index].per_second for each in measured)
        ratio = statistics.median(
            each[index].microseconds / each[0].microseconds for each in measured
        )
        rows.append((target.name, f"{used:.0f} µs", f"{ratio:.2f}", f"{rate:.0f}"))
    head = ("server", "processor time", "÷ echo", "requests a second")
    return (
        f"\nBeside other servers in Python: a tiny network, {CALLERS} callers of one connection, "
        f"and one load generator in C++:\n\n{table(head, rows)}"
    )


def draw(growth: Growth, path: Path) -> None:
    """A plot whose bytes are the same for the same figures."""
    rcParams["svg.hashsalt"] = "headrace"
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    axes.plot(growth.sizes, [each.echo for each in growth.points], "o--", label="bare echo")
    axes.plot(growth.sizes, [each.ours for each in growth.points], "o-", label="headrace")
    axes.set_xscale("log", base=2 if growth.sizes[-1] < 1000 else 10)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(growth.name)
    axes.set_ylabel("µs a request")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def growth_text(growth: Growth, pictures: Path, page: Path) -> str:
    name = growth.name.split()[0].strip(",")
    path = pictures / f"{name}.svg"
    draw(growth, path)
    head = ("", *(f"{size:,}" for size in growth.sizes))
    rows = (
        ("bare echo, µs", *(f"{each.echo:.0f}" for each in growth.points)),
        ("headrace, µs", *(f"{each.ours:.0f}" for each in growth.points)),
        ("ratio", *(f"{each.ratio:.2f}" for each in growth.points)),
    )
    picture = f"![Processor time by {growth.name}]({os.path.relpath(path, page.parent)})"
    return f"### By {growth.name}\n\n{table(head, rows)}\n{picture}\n"


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [each.partition(":")[2].strip() for each in lines if each.startswith("model name")]
    processor = names[0] if names else platform.machine()
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"Python {platform.python_version()}, {packages}; {len(names)} processors "
        f"({processor}), Linux {platform.release().partition('-')[0]}. The load average was "
        f"{os.getloadavg()[2]:.1f}: with more than the number of processors, other work disturbed "
        f"the figures, and only the ratios count."
    )


def main(page: Path, pictures: Path) -> None:
    before, mark, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"{page} lacks the marks {BEGIN.strip()} and {END.strip()}")
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        echo = stack.enter_context(running(str(HERE / "echo_server.py")))
        ours = stack.enter_context(headrace())
        idle = ours[1].memory_info().rss / 1e6
        messages = load_networks([ours[0]], folder)
        cases, stages = cases_table(echo, ours, messages), stages_table()
        grown = [growth_text(each, pictures, page) for each in growths(echo, ours, folder)]
        peers = peers_table(stack, folder)
    text = "\n".join(
        (
            f"Processor time of the server per request, medians of {ROUNDS} rounds. {machine()} A "
            f"server without networks has {idle:.0f} MB resident.\n\n{cases}{peers}",
            "The stages of a request, each alone in a loop. In a busy server the processor's "
            "caches are cold, and a stage costs up to three times as much. The rest of a request's "
            f"time is gRPC's, the event loop's and the kernel's.\n\n{stages}",
            *grown,
        )
    )
    page.write_text(f"{before}{mark}{text}{end}{after}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
