"""Tensors through shared memory beside the same tensors in messages, in the same minute.

One server and two clients, which are asked in turns; figures are medians of the rounds. Processor
time a request is the server's own and, apart from it, the client's. The border below which the
client sends messages is lifted, so that the small cases show where it belongs.
``bench_shared_memory ROUNDS CASE`` takes as many rounds, in cases whose names begin so.
"""

from __future__ import annotations

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import onnx
import psutil

from headrace.client import Client, Network
from headrace.client.shared_memory import sharing
from headrace.testing.case import parse
from tools.benchmark.bench_requests import network
from tools.benchmark.servers import headrace

ROUNDS = 5
SECONDS = 1.0


class Case(NamedTuple):
    name: str
    shape: tuple[int, ...]
    callers: int
    reduced: bool = False  # to a few bytes, as a classifier does


IMAGE = (1, 3, 224, 224)
CASES = (
    Case("64 KB in and out, 1 caller", (16, 1024), 1),
    Case("128 KB in and out, 1 caller", (32, 1024), 1),
    Case("256 KB in and out, 1 caller", (64, 1024), 1),
    Case("600 KB in, 12 B out, 1 caller", IMAGE, 1, reduced=True),
    Case("600 KB in and out, 1 caller", IMAGE, 1),
    Case("600 KB in and out, 8 callers", IMAGE, 8),
    Case("6 MB in and out, 1 caller", (10, 3, 224, 224), 1),
    Case("6 MB in and out, 8 callers", (10, 3, 224, 224), 8),
)


class Figures(NamedTuple):
    """Microseconds: the server's and the client's processor time a request, and its latency."""

    server: float
    client: float
    latency: float


def model(case: Case) -> onnx.ModelProto:
    if not case.reduced:
        return network("Identity", case.shape)
    reduced = [*case.shape[:2], 1, 1]
    return parse(f"g (float{[*case.shape]} x) => (float{reduced} y) {{ y = GlobalMaxPool(x) }}")


def measure(asked: Network, case: Case, server: psutil.Process) -> Figures:
    """Asks for a while."""
    inputs = {"x": np.ones(case.shape, np.float32)}
    processes = (server, psutil.Process())
    end = time.perf_counter() + SECONDS

    def ask(_: int) -> list[float]:
        taken: list[float] = []
        while not taken or time.perf_counter() < end:
            start = time.perf_counter()
            asked.infer(inputs)
            taken.append(time.perf_counter() - start)
        return taken

    asked.infer(inputs)
    before = [sum(process.cpu_times()[:2]) for process in processes]
    with ThreadPoolExecutor(case.callers) as pool:
        latencies = [each for taken in pool.map(ask, range(case.callers)) for each in taken]
    used = [
        (sum(process.cpu_times()[:2]) - earlier) / len(latencies) * 1e6
        for process, earlier in zip(processes, before, strict=True)
    ]
    return Figures(used[0], used[1], statistics.median(latencies) * 1e6)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    sharing.LEAST_BYTES = 1  # type: ignore[misc]
    with headrace("--allow-client-shared-memory") as (address, server):
        plain, shared = Client(address), Client(address, shared_memory=True)
        with plain, shared:
            head = ("server us", "client us", "latency us")
            print(f"{'case':32}" + "".join(f"{each:>26}" for each in head))
            print(f"{'':32}" + 3 * f"{'message':>10}{'shared':>9}{'ratio':>7}")
            for case in CASES:
                if not case.name.startswith(only):
                    continue
                plain.load_network(model(case).SerializeToString(), name="net", replace=True)
                networks = [client.network("net") for client in (plain, shared)]
                pairs = [[measure(each, case, server) for each in networks] for _ in range(rounds)]
                line = f"{case.name:32}"
                for index in range(3):
                    columns = [[figures[index] for figures in pair] for pair in pairs]
                    message, lent = (
                        statistics.median(column) for column in zip(*columns, strict=True)
                    )
                    ratio = statistics.median(theirs / ours for ours, theirs in columns)
                    line += f"{message:10.0f}{lent:9.0f}{ratio:7.2f}"
                print(line, flush=True)


if __name__ == "__main__":
    main()
