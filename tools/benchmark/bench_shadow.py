"""What a shadow costs the callers of a network.

Usage: bench_shadow [--callers 2] [--megabytes 16] [--rounds 30] [--seconds 2] [--percent 5]. So
many callers in closed loops ask a network of products, of so many megabytes, in turns of so many
seconds: without a shadow, with one, and without one again. A round has one turn of each kind, each
time in another order. The shadow is another version with the same weights, which gets so many per
cent of the requests. By default that takes three minutes.

Prints for each kind the medians, over its turns, of the median and of the 99th percentile of a
turn's requests in milliseconds, and of the server's processor time for each; then the median of the
rounds' own ratios of the 99th percentiles; and what became of the shadow's requests. The turns with
a shadow are compared with both others of their round. The ratio of the two kinds without a shadow
shows how far the machine's noise goes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import psutil

from headrace.client import Client
from headrace.client.sync import Network
from tools.benchmark.bench_memory import FEATURES, model
from tools.benchmark.servers import compared, processor_seconds, running

INPUTS = {"x": np.ones((1, FEATURES), np.float32)}
WITHOUT, WITH, AGAIN = "without", "with", "without again"
KINDS = (WITHOUT, WITH, AGAIN)


class Turn(NamedTuple):
    """What came of one turn.

    Attributes:
        median, late: of its requests, the latter the 99th percentile, in milliseconds.
        processor: the server's time for a request, in microseconds.
    """

    median: float
    late: float
    processor: float


def asked(networks: list[Network], seconds: float) -> list[float]:
    """The seconds of each request of a turn; each network has a caller."""
    taken: list[float] = []
    until = time.monotonic() + seconds

    def call(network: Network) -> None:
        while (began := time.monotonic()) < until:
            network.infer(INPUTS)
            taken.append(time.monotonic() - began)

    threads = [threading.Thread(target=call, args=(network,)) for network in networks]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").partition("Usage: ")[2])
    for name, number in (
        ("--callers", 2),
        ("--megabytes", 16),
        ("--rounds", 30),
        ("--seconds", 2),
        ("--percent", 5),
    ):
        parser.add_argument(name, type=int, default=number)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        for version in ("1", "2"):
            folder = Path(root, "net", version)
            folder.mkdir(parents=True)
            onnx.save(model(0, options.megabytes), folder / "model.onnx")
        Path(root, "net", "network.toml").write_text('version_policy = "all"\n[traffic]\n1 = 100\n')
        ports = ("--port", "0", "--http-port", "0", "--json", "--log-level", "warning")
        command = ("-m", "headrace.server", *ports, "--model-repository", root)
        with running(*command) as (line, process):
            measure(json.loads(line), process, options)


def measure(ports: Mapping[str, str], process: psutil.Process, options: argparse.Namespace) -> None:
    """
    Args:
        ports: the server's addresses.
        process: the server's.
    """
    rounds: list[dict[str, Turn]] = []
    with ExitStack() as clients:
        control, *others = (
            clients.enter_context(Client(ports["grpc"])) for _ in range(options.callers + 1)
        )
        networks = [client.network("net") for client in others]
        asked(networks, 1.0)
        for number in range(options.rounds):
            turns: dict[str, Turn] = {}
            for kind in KINDS[number % 3 :] + KINDS[: number % 3]:
                share = options.percent if kind == WITH else 0
                control.set_shadow("net", 2 if share else None, percent=share)
                before = processor_seconds(process)
                taken = asked(networks, options.seconds)
                used = processor_seconds(process) - before
                median, late = 1e3 * np.quantile(taken, (0.5, 0.99))
                turns[kind] = Turn(median, late, 1e6 * used / len(taken))
            rounds.append(turns)
    for kind in KINDS:
        columns = zip(*(turns[kind] for turns in rounds), strict=True)
        median, late, each = map(statistics.median, columns)
        print(f"{kind:13} median {median:.3f} ms, p99 {late:.3f} ms, {each:.0f} µs of processor")
    late = [[turns[kind].late for kind in KINDS] for turns in rounds]
    cost = compared((math.sqrt(before * after), shadowed) for before, shadowed, after in late)
    noise = compared((before, after) for before, _, after in late)
    print(f"p99 with a shadow: {cost.ratio:.3f} x that of the turns without")
    print(f"p99 without again: {noise.ratio:.3f} x that without")
    with urllib.request.urlopen(f"http://{ports['http']}/metrics") as page:
        for row in page.read().decode().splitlines():
            if row.startswith("headrace_shadow_requests_total"):
                print(row)


if __name__ == "__main__":
    main()
