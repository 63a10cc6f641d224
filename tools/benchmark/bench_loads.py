"""What loads of real networks cost beside ONNX Runtime alone, in processor time; needs `make zoo`.

A load is a load and an unload over the wire: all that the server and its children use for them
until nothing is left to do. The floor is `onnxruntime.InferenceSession(path)` and its end in a
process of its own, in turns. Each first load and each query is of a file that the server has never
seen.

Usage: bench_loads [--device DEVICE] [--most-bytes N] [--networks N] [PATTERN...]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import onnx
import psutil

from headrace.client import Client, Error
from tools.benchmark.servers import HERE, Program, headrace, listening
from tools.zoo.collection import networks

ZOO = Path(".cache/zoo")
ROUNDS = 5
IDLE_SECONDS = 0.05
GOALS = {"first": 2.5, "after a query": 1.3, "seen before": 1.3}

_fresh = itertools.count(time.time_ns())


class Row(NamedTuple):
    """Milliseconds of processor time for one network, medians of the rounds.

    Attributes:
        first: a load of a network that the server has never seen.
        queried: a load after a query of the same network.
        again: a load of a network that was loaded and unloaded before.
    """

    name: str
    floor: float
    first: float
    query: float
    queried: float
    again: float

    def ratio(self, what: str) -> float:
        took = {"first": self.first, "after a query": self.queried, "seen before": self.again}
        return took[what] / self.floor


def processor_seconds(server: psutil.Process) -> float:
    """What the process and its children have used, to the nanosecond. `cpu_times` counts in steps
    of ten milliseconds."""
    used = 0.0
    for pid in (server.pid, *(each.pid for each in server.children(recursive=True))):
        with suppress(OSError):
            used += time.clock_gettime((~pid << 3) | 2)  # the clock of another process
    return used


def settled(server: psutil.Process) -> float:
    """What the server has used when it has nothing left to do, as freeing what an unload left."""
    used = processor_seconds(server)
    while True:
        time.sleep(IDLE_SECONDS)
        now = processor_seconds(server)
        if now - used < IDLE_SECONDS / 50:
            return now
        used = now


def opened(bare: Program, path: Path) -> float:
    """What ONNX Runtime alone takes to open a network; see bare_session.py."""
    print(path, file=bare[0], flush=True)
    return 1000 * float(bare[1].readline())


def never_seen(data: bytes) -> bytes:
    """The same network in other bytes: protobuf takes the last of two texts."""
    return data + onnx.ModelProto(doc_string=str(next(_fresh))).SerializeToString()


def measure(
    client: Client, server: psutil.Process, bare: Program, path: Path, device: str
) -> tuple[float, ...]:
    data = path.read_bytes()

    def load(model: bytes) -> float:
        before = settled(server)
        client.load_network(model, device=device, name="measured", timeout=120).unload()
        return 1000 * (settled(server) - before)

    def query(model: bytes) -> float:
        before = settled(server)
        client.query_network(model, device=device, timeout=120)
        return 1000 * (settled(server) - before)

    load(never_seen(data))  # what is done once
    opened(bare, path)
    rounds = []
    for _ in range(ROUNDS):
        new, asked = never_seen(data), never_seen(data)
        floor = opened(bare, path)
        first = load(new)
        rounds.append((floor, first, query(asked), load(asked), load(new)))
    return tuple(statistics.median(column) for column in zip(*rounds, strict=True))


def rows(device: str, chosen: dict[str, Path]) -> Iterator[Row]:
    with (
        headrace() as (address, server),
        listening(str(HERE / "bare_session.py")) as bare,
        Client(address) as client,
    ):
        for name, path in chosen.items():
            try:
                yield Row(name, *measure(client, server, bare, path, device))
            except Error as error:
                print(f"{name} on {device}: {str(error)[:200]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--most-bytes", type=int, default=3_000_000)
    parser.add_argument("--networks", type=int, default=50)
    parser.add_argument("pattern", nargs="*", default=["*"])
    options = parser.parse_args()
    found = {
        name: path
        for name, path in networks(ZOO).items()
        if path.stat().st_size <= options.most_bytes
        and any(fnmatchcase(name, each) for each in options.pattern)
    }
    by_size = sorted(found.items(), key=lambda each: each[1].stat().st_size)
    step = max(1.0, len(by_size) / options.networks)
    chosen = dict(by_size[int(at * step)] for at in range(min(options.networks, len(by_size))))
    print(f"{'processor ms of a load on ' + options.device:58} alone   first  query  then  again")
    done = []
    for row in rows(options.device, chosen):
        done.append(row)
        print(
            f"{row.name[-58:]:58} {row.floor:5.1f}  {row.first:6.1f} {row.query:6.1f} "
            f"{row.queried:5.1f} {row.again:6.1f}   {row.ratio('first'):5.1f} "
            f"{row.ratio('after a query'):5.1f} {row.ratio('seen before'):5.1f}",
            flush=True,
        )
    for what, goal in GOALS.items():
        ratios = sorted((row.ratio(what), row.name) for row in done)
        if ratios:
            middle = statistics.median(ratio for ratio, _ in ratios)
            print(
                f"{what}: {middle:.2f} times ONNX Runtime's in the median, at most "
                f"{ratios[-1][0]:.1f} ({ratios[-1][1]}); target {goal}"
            )


if __name__ == "__main__":
    main()
