"""What networks of the zoo take over the wire on OPENVINO beside CPU; needs `make zoo`.

A shape seen before is asked until OPENVINO has decided what runs it, and then timed on both devices
in turns. New shapes are asked once on each, and their middle time is compared. Times are what the
client waits for one call.

Usage: bench_shapes [PATTERN...]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from headrace.client import Client, Error
from headrace.client.sync import Network
from headrace.plugins.openvino.running.shapes import MOST_TRIALS
from tools.benchmark.servers import headrace
from tools.zoo.collection import networks
from tools.zoo.hints import hint_for
from tools.zoo.inputs import Inputs, generate, ports

ZOO = Path(".cache/zoo")
ROUNDS = 9
ROUND_SECONDS = 0.1
NEW_SHAPES = 24
DECIDING_SECONDS = 60.0


@dataclass(frozen=True)
class Row:
    """
    Attributes:
        cpu, openvino: milliseconds of a call on a shape seen before.
        runs: what OPENVINO's network runs the shape on, with the reason if it is CPU.
        new: OPENVINO's time of a new shape, divided by CPU's. None without free axes.
    """

    name: str
    request: Inputs
    cpu: float
    openvino: float
    ratio: float
    runs: str
    new: float | None

    def __str__(self) -> str:
        new = "-" if self.new is None else f"{self.new:.2f}"
        times = f"{self.cpu:.2f} | {self.openvino:.2f} | {self.ratio:.2f}"
        return f"| {self.name}, {self.request} | {times} | {self.runs} | {new} |"


def timed(network: Network, request: Inputs) -> float:
    begun = time.perf_counter()
    network.infer(request.arrays)
    return time.perf_counter() - begun


def decided(network: Network, request: Inputs) -> str:
    """What runs the shape, after so many calls that OPENVINO has compiled and tried it."""
    until = time.monotonic() + DECIDING_SECONDS
    while time.monotonic() < until:
        network.infer(request.arrays)
        if network.get_metric("COMPILED_SHAPES") or network.get_metric("FALLBACK_SHAPES"):
            break
    for _ in range(MOST_TRIALS):
        network.infer(request.arrays)
    kept = network.get_metric("FALLBACK_SHAPES")
    return f"CPU: {kept[0]}" if isinstance(kept, list) and kept else "OpenVINO"


def in_turns(networks: Sequence[Network], request: Inputs) -> list[list[float]]:
    """The middle time of a call on each network in each round."""
    calls = max(3, int(ROUND_SECONDS / timed(networks[0], request)))
    return [
        [statistics.median(timed(each, request) for _ in range(calls)) for each in networks]
        for _ in range(ROUNDS)
    ]


def of_new_shapes(networks: Sequence[Network], name: str, path: Path) -> float | None:
    takes, hint = ports(path), hint_for(name)
    first = generate(takes, hint, 0)[0].sizes
    batch = {port.axes[0] for port in takes if port.axes}
    free = [each for each in first if each not in batch and len(hint.sizes.get(each, (1, 2))) > 1]
    if not free:
        return None
    times: list[list[float]] = []
    for step in range(1, NEW_SHAPES + 1):
        sizes = {
            each: (size + 8 * step,) if each in free else (size,) for each, size in first.items()
        }
        request = generate(takes, type(hint)(sizes, hint.values), step)[0]
        order = networks if step % 2 else [*reversed(networks)]
        try:
            took = [timed(each, request) for each in order]
        except Error:  # the network takes no such size
            continue
        times.append(took if step % 2 else took[::-1])
    if len(times) < NEW_SHAPES // 2:
        return None
    cpu, openvino = (statistics.median(column) for column in zip(*times, strict=True))
    return float(openvino / cpu)


def measured(client: Client, name: str, path: Path) -> Row:
    request = generate(ports(path), hint_for(name), 0)[0]
    loaded: list[Network] = []
    with ExitStack() as stack:
        for device in ("CPU", "OPENVINO"):
            network = client.load_network(path.read_bytes(), device=device, name=device.lower())
            stack.callback(network.unload)
            loaded.append(network)
        runs = decided(loaded[1], request)
        rounds = in_turns(loaded, request)
        ratio = statistics.median(one / other for one, other in rounds)
        middle = [1000 * statistics.median(column) for column in zip(*rounds, strict=True)]
        cpu_ms, openvino_ms = middle
        new = of_new_shapes(loaded, name, path)
        return Row(name, request, cpu_ms, openvino_ms, ratio, runs, new)


def rows(patterns: Sequence[str]) -> Iterator[Row]:
    with headrace("--devices", "CPU,OPENVINO") as (address, _), Client(address) as client:
        for name, path in networks(ZOO).items():
            if patterns and not any(fnmatchcase(name, each) for each in patterns):
                continue
            try:
                yield measured(client, name, path)
            except (Error, ValueError) as error:
                print(f"{name}: {str(error)[:150]}", file=sys.stderr, flush=True)


def main(patterns: Sequence[str]) -> None:
    found: list[Row] = []
    print("| network, sizes | CPU ms | OPENVINO ms | CPU ÷ OPENVINO | runs on | new shape |")
    print("| --- | ---: | ---: | ---: | --- | ---: |")
    for row in rows(patterns):
        print(row, flush=True)
        found.append(row)
    print(f"{len(found)} networks, CPU ÷ OPENVINO: {statistics.median(r.ratio for r in found):.2f}")
    new = [row.new for row in found if row.new is not None]
    print(f"new shapes, OPENVINO ÷ CPU: {statistics.median(new):.2f}, highest {max(new):.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
