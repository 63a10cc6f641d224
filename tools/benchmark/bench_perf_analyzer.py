"""Requests a second that perf_analyzer counts, of headrace and of KServe's SDK in turns.

The medians of five, at each concurrency. ``make benchmark-peers`` makes the environments and runs
this. perf_analyzer needs Debian's libb64-0d.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import grpc

from headrace.client import Client
from headrace.oip import open_inference_pb2 as oip
from tools.benchmark.bench_peers import peer, python_of
from tools.benchmark.bench_requests import network
from tools.benchmark.servers import headrace

ROUNDS = 5
SECONDS = 1.0
CONCURRENCIES = (1, 4, 8, 16, 32)


def configuration(address: str) -> bytes:
    """What a server of headrace answers to ModelConfig."""
    ask = oip.ModelConfigRequest(name="tiny").SerializeToString()
    with grpc.insecure_channel(address) as channel:
        reply: bytes = channel.unary_unary("/inference.GRPCInferenceService/ModelConfig")(ask)
    return reply


def per_second(address: str, callers: int) -> float:
    """The requests a second of so many callers in closed loops."""
    python = python_of("clients")
    (runtime,) = {each.parent for each in python.parents[1].rglob("libcudart.so*")}
    command = [str(python.with_name("perf_analyzer")), "-i", "grpc", "-u", address, "-m", "tiny"]
    command += ["--concurrency-range", str(callers), "--stability-percentage", "999"]
    command += ["--measurement-interval", str(int(1000 * SECONDS))]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(runtime)},
    )
    (rate,) = re.findall(r"^Concurrency: .* throughput: ([0-9.]+) infer/sec", ran.stdout, re.M)
    return float(rate)


def main() -> None:
    with tempfile.NamedTemporaryFile() as file, ExitStack() as stack:
        ours, _ = stack.enter_context(headrace())
        with Client(ours) as client:
            client.load_network(network("Add", (1, 16)), device="CPU", name="tiny")
        file.write(configuration(ours))
        file.flush()
        theirs, _ = stack.enter_context(peer("kserve", file.name))
        print(f"{'callers':>7} {'KServe':>8} {'headrace':>8} {'ratio':>6}")
        for callers in CONCURRENCIES:
            pairs = [
                (per_second(theirs, callers), per_second(ours, callers)) for _ in range(ROUNDS)
            ]
            both = (statistics.median(pair[place] for pair in pairs) for place in (0, 1))
            ratio = statistics.median(own / other for other, own in pairs)
            print(f"{callers:7} {next(both):8.0f} {next(both):8.0f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
