"""Many connections: latency of an open loop, and memory of idle connections.

The open loop sends tiny requests at planned times over 256 connections, at 70 % of the capacity
that closed loops on these connections reach just before. It does so with a bare echo, too, at 70 %
of the echo's own capacity. Headrace gets the echo's load as well: the latency of a server depends
on how busy it is. An idle connection has had one reply.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import psutil

from tools.benchmark.bench_requests import load_tiny
from tools.benchmark.generator import Generated, Missing, generate, generator
from tools.benchmark.servers import (
    ECHO,
    HERE,
    INFER,
    Compared,
    Server,
    compared,
    headrace,
    listening,
    running,
)

ROUNDS = 5
SECONDS = 5.0
CONNECTIONS = 256
SHARE = 0.7
IDLE = (1, 100, 1000)

Round: TypeAlias = tuple[Generated, Generated]
"""The closed loops of a round, and its open loop."""


class OpenLoop(NamedTuple):
    """Medians of all rounds, of whose latencies each is in microseconds.

    Attributes:
        capacity: requests a second of closed loops.
        per_second: requests a second of the open loop.
        ratio: of the 99th percentile to the median.
        slowest: the largest of the connections' medians.
        late: the 99th percentile of the generator's own delay.
        full, used: the server's processor time per reply in microseconds, in the closed loops and
            in the open one.
        fewest: the fewest replies of a connection in any round.
    """

    capacity: float
    per_second: float
    median: float
    p99: float
    ratio: float
    slowest: float
    late: float
    full: float
    used: float
    fewest: float


class Loops(NamedTuple):
    """The open loops of the bare echo and of headrace.

    Attributes:
        same: that of headrace with as many requests a second as the echo had.
    """

    echo: OpenLoop
    ours: OpenLoop
    same: OpenLoop


class Memory(NamedTuple):
    """Medians of all rounds.

    Attributes:
        resident: megabytes of a server that has just started.
        kilobytes: of an idle connection, on average of the most, in the bare echo and in headrace.
        megabytes: the server's proportional set size with each number of `IDLE`.
    """

    resident: float
    kilobytes: Compared
    megabytes: list[float]


def open_loops(rounds: int = ROUNDS, seconds: float = SECONDS) -> Loops:
    """
    Raises:
        Missing: the load generator cannot be built.
    """
    found: tuple[list[Round], list[Round], list[Round]] = [], [], []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        program = stack.enter_context(generator())
        echo = stack.enter_context(running(str(HERE / "echo_server.py")))
        ours = stack.enter_context(headrace())
        message = load_tiny(folder, ours[0])
        many = partial(generate, program, connections=CONNECTIONS)
        of_echo = partial(many, *echo, ECHO, message)
        of_ours = partial(many, *ours, INFER, message)
        for _ in range(rounds):
            floor, full = (
                each(seconds=seconds / 2, callers=CONNECTIONS) for each in (of_echo, of_ours)
            )
            for load, capacity, rate, those in zip(
                (of_echo, of_ours, of_ours),
                (floor, full, full),
                (floor.per_second, full.per_second, floor.per_second),
                found,
                strict=True,
            ):
                those.append((capacity, load(seconds=seconds, per_second=SHARE * rate)))
    return Loops(*map(_medians, found))


def _medians(found: list[Round]) -> OpenLoop:
    rows = [
        (
            full.per_second,
            each.per_second,
            each.median,
            each.p99,
            each.p99 / each.median,
            each.slowest,
            each.late,
            full.used,
            each.used,
        )
        for full, each in found
    ]
    medians = [statistics.median(column) for column in zip(*rows, strict=True)]
    return OpenLoop(*[*medians, min(each.fewest for _, each in found)])


@contextmanager
def idle_connections(address: str, method: str, message: Path, count: int) -> Iterator[None]:
    program = str(HERE / "idle_connections.py")
    with listening(program, address, method, str(message), str(count)) as (_, told):
        if not told.readline():
            raise RuntimeError(f"{count} connections could not be opened")
        yield


def megabytes(server: psutil.Process) -> float:
    return float(server.memory_full_info().pss) / 1e6


def with_idle_connections(server: Server, method: str, message: Path) -> list[float]:
    found = []
    for count in IDLE:
        with idle_connections(server[0], method, message, count):
            found.append(megabytes(server[1]))
    return found


def kilobytes_each(found: list[float]) -> float:
    return (found[-1] - found[0]) * 1000 / (IDLE[-1] - IDLE[0])


def memory(rounds: int = ROUNDS) -> Memory:
    found, kilobytes = [], []
    for _ in range(rounds):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            echo = stack.enter_context(running(str(HERE / "echo_server.py")))
            ours = stack.enter_context(headrace())
            resident = ours[1].memory_info().rss / 1e6
            message = load_tiny(folder, ours[0])
            floor = with_idle_connections(echo, ECHO, message)
            used = with_idle_connections(ours, INFER, message)
            kilobytes.append((kilobytes_each(floor), kilobytes_each(used)))
            found.append((resident, *used))
    resident, *used = (statistics.median(column) for column in zip(*found, strict=True))
    return Memory(resident, compared(kilobytes), used)


def main() -> None:
    try:
        names = "the bare echo", "headrace", "headrace with the echo's load"
        for name, loop in zip(names, open_loops(), strict=True):
            show(name, loop)
    except Missing as error:
        print(f"latency was not measured: {error}")
    found = memory()
    print(f"a server that has just started: {found.resident:.0f} MB resident (<= 130)")
    for count, used in zip(IDLE, found.megabytes, strict=True):
        print(f"  with {count} idle connections: {used:.1f} MB (PSS)")
    ours, echo = found.kilobytes.ours, found.kilobytes.floor
    print(f"an idle connection: {ours:.1f} KB (<= 12); of the bare echo: {echo:.1f} KB")


def show(name: str, loop: OpenLoop) -> None:
    print(
        f"{name}: {CONNECTIONS} connections, {loop.per_second:.0f} of {loop.capacity:.0f} requests "
        f"a second, {loop.used:.0f} us of processor time each ({loop.full:.0f} in closed loops)"
    )
    print(f"  median {loop.median:.0f} us, 99 % {loop.p99:.0f} us, ratio {loop.ratio:.1f} (<= 5)")
    print(f"  the slowest connection's median: {loop.slowest:.0f} us")
    print(f"  the fewest replies of a connection: {loop.fewest:.0f}")
    print(f"  99 % of the generator's own delays: {loop.late:.0f} us")


if __name__ == "__main__":
    main()
