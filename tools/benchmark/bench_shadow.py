"""What a shadow costs the callers of a network.

Usage: bench_shadow.py [CALLERS MEGABYTES ROUNDS [PERCENT]]. So many callers in closed loops ask a
network of products, of so many megabytes, in turns of half a second: without a shadow, with one,
and without one again. The shadow is another version with the same weights, which gets so many per
cent of the requests.

Prints the median and the 99th percentile of all requests of each kind in milliseconds, with the
server's processor time; and what became of the shadow's requests. The two kinds without a shadow
show how far the machine's noise goes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import onnx
import psutil

from headrace.client import Client
from headrace.client.sync import Network
from tools.benchmark.bench_memory import FEATURES, model
from tools.benchmark.servers import processor_seconds, running

INPUTS = {"x": np.ones((1, FEATURES), np.float32)}
SECONDS = 0.5
KINDS = ("without", "with", "without again")


def asked(networks: list[Network]) -> list[float]:
    """The seconds of each request of a turn; each network has a caller."""
    taken: list[float] = []
    until = time.monotonic() + SECONDS

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
    callers, megabytes, rounds, percent = (
        int(text) for text in [*sys.argv[1:], *("2", "16", "60", "5")[len(sys.argv) - 1 :]]
    )
    with tempfile.TemporaryDirectory() as root:
        for version in ("1", "2"):
            folder = Path(root, "net", version)
            folder.mkdir(parents=True)
            onnx.save(model(0, megabytes), folder / "model.onnx")
        Path(root, "net", "network.toml").write_text('version_policy = "all"\n[traffic]\n1 = 100\n')
        ports = ("--port", "0", "--http-port", "0", "--json", "--log-level", "warning")
        command = ("-m", "headrace.server", *ports, "--model-repository", root)
        with running(*command) as (line, process):
            measure(json.loads(line), process, callers, rounds, percent)


def measure(
    ports: Mapping[str, str], process: psutil.Process, callers: int, rounds: int, percent: int
) -> None:
    """
    Args:
        ports: the server's addresses.
        process: the server's.
    """
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    processor = dict.fromkeys(KINDS, 0.0)
    with ExitStack() as clients:
        control, *others = (
            clients.enter_context(Client(ports["grpc"])) for _ in range(callers + 1)
        )
        networks = [client.network("net") for client in others]
        asked(networks)
        for number in range(rounds):
            for kind in KINDS if number % 2 else reversed(KINDS):
                share = percent if kind == "with" else 0
                control.set_shadow("net", 2 if share else None, percent=share)
                before = processor_seconds(process)
                taken[kind] += asked(networks)
                processor[kind] += processor_seconds(process) - before
    for kind in KINDS:
        of_kind = sorted(taken[kind])
        middle, late = (1e3 * of_kind[len(of_kind) * part // 100] for part in (50, 99))
        each = 1e6 * processor[kind] / len(of_kind)
        print(f"{kind:13} {len(of_kind)} requests, median {middle:.3f} ms, p99 {late:.3f} ms,")
        print(f"{'':13} {each:.0f} µs of processor time each")
    with urllib.request.urlopen(f"http://{ports['http']}/metrics") as page:
        for row in page.read().decode().splitlines():
            if row.startswith("headrace_shadow_requests_total"):
                print(row)


if __name__ == "__main__":
    main()
