"""How the cost of a request grows with connections, requests in flight, bytes, layers, networks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx

from headrace.client import Client
from headrace.testing.case import parse
from tools.benchmark.bench_requests import network
from tools.benchmark.report.section import ECHO_COLOR, OUR_COLOR, Effort, Goal, Pictures, table
from tools.benchmark.servers import (
    ECHO,
    HERE,
    INFER,
    Compared,
    Server,
    compared,
    headrace,
    load,
    request,
    running,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "How the cost grows"
CALLERS: Final = 32
CONNECTIONS: Final = (1, 4, 16, 64, 256)
IN_FLIGHT: Final = (1, 4, 16, 64, 128)
BYTES: Final = (64, 4 << 10, 64 << 10, 600 << 10, 4 << 20)
NETWORKS: Final = (1, 10, 100)
LAYERS: Final = (1, 10, 100, 1000)
WIDE: Final = 20
"""From this ratio of the dearest to the cheapest request on, a plot has a logarithmic axis."""
TITLES: Final = {
    "connections": f"connections, of {CONNECTIONS[-1]} callers",
    "in-flight": "requests in flight on one connection",
    "bytes": "bytes of the tensor, in and out, of 8 callers",
    "layers": f"layers of the network, of {CALLERS} callers",
    "networks": f"networks loaded, of {CALLERS} callers",
}


Ask = Callable[..., Compared]


def measure(effort: Effort) -> Any:
    """For each quantity, its sizes and what a request cost then."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        echo = stack.enter_context(running(str(HERE / "echo_server.py")))
        ours = stack.enter_context(headrace())
        client = stack.enter_context(Client(ours[0]))
        ask = partial(compare, echo, ours, Path(folder) / "message", effort)
        client.load_network(network("Add", (1, 16)), device="CPU", name="tiny")
        many = partial(ask, callers=CONNECTIONS[-1])
        return {
            "connections": {n: many(connections=n) for n in effort.of(CONNECTIONS)},
            "in-flight": {n: ask(callers=n) for n in effort.of(IN_FLIGHT)},
            "bytes": dict(by_bytes(client, ask, effort.of(BYTES))),
            "layers": dict(by_layers(client, ask, effort.of(LAYERS))),
            "networks": dict(by_networks(client, ask, effort.of(NETWORKS))),
        }


def compare(
    echo: Server,
    ours: Server,
    message: Path,
    effort: Effort,
    name: str = "tiny",
    columns: int = 16,
    *,
    callers: int = CALLERS,
    connections: int = 1,
) -> Compared:
    """Asks both in turns; the echo gets the bytes of the request to the network."""
    message.write_bytes(request(name, {"x": np.ones((1, columns), np.float32)}))
    given = {"LOAD_CONNECTIONS": str(connections)}
    rounds = []
    for _ in range(effort.rounds):
        floor = load(*echo, ECHO, callers, message, effort.seconds, given)
        used = load(*ours, INFER, callers, message, effort.seconds, given)
        rounds.append((floor.microseconds, used.microseconds))
    return compared(rounds)


def by_bytes(client: Client, ask: Ask, sizes: list[int]) -> Iterator[tuple[int, Compared]]:
    for size in sizes:
        columns = size // 4
        model = network("Identity", (1, columns))
        loaded = client.load_network(model, device="CPU", name="bytes")
        yield size, ask("bytes", columns, callers=8)
        loaded.unload()


def by_layers(client: Client, ask: Ask, sizes: list[int]) -> Iterator[tuple[int, Compared]]:
    for size in sizes:
        loaded = client.load_network(chain(size), device="CPU", name="layers")
        yield size, ask("layers")
        loaded.unload()


def by_networks(client: Client, ask: Ask, sizes: list[int]) -> Iterator[tuple[int, Compared]]:
    for size in sizes:
        for number in range(len(client.networks()), size):
            client.load_network(network("Add", (1, 16)), device="CPU", name=f"other{number}")
        yield size, ask()


def chain(layers: int) -> onnx.ModelProto:
    """A network of so many layers, which no optimiser joins."""
    names = ["x", *(f"t{index}" for index in range(1, layers)), "y"]
    lines = [
        f"{after} = {'Sin' if index % 2 else 'Tanh'}({before})"
        for index, (before, after) in enumerate(pairwise(names))
    ]
    return parse(f"chain (float[1, 16] x) => (float[1, 16] y) {{ {' '.join(lines)} }}")


def text(found: Any, pictures: Pictures) -> str:
    parts = [
        "Processor time of the server for a unary request, beside the echo of the same bytes. The "
        "echo has no networks: where only their number or size changes, the differences between "
        "its own figures show how exact the measurement is.\n"
    ]
    for name, title in TITLES.items():
        points = {int(size): Compared(*each) for size, each in found[name].items()}
        head = (name.replace("-", " "), *map(size_text, points))
        rows = (
            ("bare echo, µs", *(f"{each.floor:,.0f}" for each in points.values())),
            ("headrace, µs", *(f"{each.ours:,.0f}" for each in points.values())),
            ("ratio", *(f"{each.ratio:.2f}" for each in points.values())),
        )
        picture = pictures.draw(name, f"Processor time by {title}", partial(paint, points, title))
        parts.append(f"By {title}:\n\n{table(head, rows)}\n{picture}")
    return "\n".join(parts)


def size_text(size: float) -> str:
    """A number as the axis and the table show it: 4 MB as 4M."""
    for unit, step in (("M", 1 << 20), ("K", 1 << 10)):
        if size >= step and size % step == 0:
            return f"{size / step:.0f}{unit}"
    return f"{size:,.0f}"


def paint(points: dict[int, Compared], title: str, axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    sizes = list(points)
    floors = [each.floor for each in points.values()]
    ours = [each.ours for each in points.values()]
    axes.plot(sizes, floors, "o--", color=ECHO_COLOR, label="bare echo")
    axes.plot(sizes, ours, "o-", color=OUR_COLOR, label="headrace")
    axes.set_xscale("log")
    axes.set_xticks(sizes, list(map(size_text, sizes)))
    axes.xaxis.set_minor_locator(NullLocator())
    if max(ours) > WIDE * min(floors):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel(title)
    axes.set_ylabel("µs a request")
    axes.grid(alpha=0.3)
    axes.legend(ncols=2, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1))


def goals(found: Any) -> list[Goal]:
    return []
