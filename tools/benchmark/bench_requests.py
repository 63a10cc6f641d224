"""Server processor time per request, beside a bare echo in the same minute; medians of five.

One process of a program costs up to a tenth more than the next one for as long as it lives, the
echo too. So each round asks three processes of either, in turns, and compares their means.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from headrace.client import Client
from headrace.testing.case import parse
from tools.benchmark.echo_server import UNTUNED
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

ROUNDS = 5
PROCESSES = 3
SECONDS = 0.7


class Case(NamedTuple):
    """A way of asking, held against the echo with a message of the same size.

    Attributes:
        echo: how the echo is asked. A message of many requests is held against as many unary calls.
        tuned: whether the echo has the allocator of headrace, which matters for large messages.
    """

    name: str
    network: str
    mode: str
    callers: int
    target: float | None
    echo: str = ECHO
    tuned: bool = True


CASES = (
    Case("tiny, unary, 32 callers", "tiny", INFER, 32, 0.25),
    Case("tiny, unary, one caller", "tiny", INFER, 1, 0.35),
    Case("tiny, 1 stream, 32 in flight", "tiny", "stream:1", 32, 0.9),
    Case("tiny, 8 streams, 4 in flight each", "tiny", "stream:8", 32, 0.6),
    Case("8 streams, 4 in flight, a message each", "tiny", "single:8", 32, 0.5, "echo:8"),
    Case("8 streams, 1 in flight, a message each", "tiny", "single:8", 8, 0.5, "echo:8"),
    Case("600 KB identity, unary, 8 callers", "large", INFER, 8, None),
    Case("600 KB identity, echo with glibc's allocator", "large", INFER, 8, 0.4, tuned=False),
)
SHAPES = {"tiny": (1, 16), "large": (1, 3, 224, 224)}
OPERATORS = {"tiny": "Add", "large": "Identity"}


def network(operator: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    port, inputs = f"float{[*shape]}", "x, x" if operator == "Add" else "x"
    return parse(f"n ({port} x) => ({port} y) {{ y = {operator}({inputs}) }}")


def load_networks(
    addresses: Iterable[str], folder: Path, names: Iterable[str] = SHAPES, **security: Any
) -> dict[str, Path]:
    """Loads the cases' networks on servers. Returns the file with a request to each network.

    Args:
        security: what a client of the servers needs.
    """
    for address in addresses:
        with Client(address, **security) as client:
            for name in names:
                made = network(OPERATORS[name], SHAPES[name])
                client.load_network(made, device="CPU", name=name)
    files = {name: folder / name for name in names}
    for name, file in files.items():
        file.write_bytes(request(name, {"x": np.ones(SHAPES[name], np.float32)}))
    return files


def load_tiny(folder: Path, *addresses: str, **security: Any) -> Path:
    """The same with the tiny network alone."""
    return load_networks(addresses, folder, ["tiny"], **security)["tiny"]


class Trio(NamedTuple):
    """A process of the echo, one of the echo with glibc's allocator, and one of headrace."""

    echo: Server
    untuned: Server
    headrace: Server


@contextmanager
def trios(count: int = PROCESSES) -> Iterator[list[Trio]]:
    """So many processes of each."""
    with ExitStack() as stack:
        echo = str(HERE / "echo_server.py")
        yield [
            Trio(
                stack.enter_context(running(echo)),
                stack.enter_context(running(echo, UNTUNED)),
                stack.enter_context(headrace()),
            )
            for _ in range(count)
        ]


def measure(
    case: Case,
    servers: Sequence[Trio],
    message: Path,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
) -> Compared:
    """The processor time of a request in microseconds."""
    found = []
    for _ in range(rounds):
        floors, ours = [], []
        for each in servers:
            echo = each.echo if case.tuned else each.untuned
            floor = load(*echo, case.echo, case.callers, message, seconds)
            used = load(*each.headrace, case.mode, case.callers, message, seconds)
            floors.append(floor.microseconds)
            ours.append(used.microseconds)
        found.append((statistics.mean(floors), statistics.mean(ours)))
    return compared(found)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, trios() as servers:
        idle_bytes = max(each.headrace[1].memory_info().rss for each in servers)
        files = load_networks([each.headrace[0] for each in servers], Path(folder))
        print(f"{'case':40} {'echo us':>8} {'ours us':>8} {'ratio':>6} {'target':>7}")
        for case in CASES:
            found = measure(case, servers, files[case.network])
            bound = "" if case.target is None else f"<= {case.target}"
            print(
                f"{case.name:40} {found.floor:8.0f} {found.ours:8.0f} {found.ratio:6.2f} {bound:>7}"
            )
        print(f"idle server: {idle_bytes / 1e6:.0f} MB resident (target <= 130)")


if __name__ == "__main__":
    main()
