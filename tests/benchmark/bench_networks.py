"""A network as large as ResNet-50 over the wire beside ONNX Runtime in-process; medians of five.

And what stays in memory after many loads and unloads of a network of 102 MB.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import psutil

from headrace.client import Client
from headrace.runtime.system.processors import usable_processors
from tests.benchmark.resnet50 import resnet50
from tests.benchmark.servers import HERE, INFER, Load, headrace, load, request

ROUNDS = 5
SECONDS = 3.0
LOADS = 50
SETTLED = 5  # loads after which memory is held against what comes later


def in_process(model: Path) -> Load:
    command = [sys.executable, str(HERE / "inprocess.py"), str(model), str(SECONDS)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    runs, took, used = out.split()
    return Load(int(runs), float(took), float(used))


def compare(address: str, server: psutil.Process, model: Path, message: Path) -> None:
    callers = 2 * usable_processors()
    rows = []
    for _ in range(ROUNDS):
        alone = in_process(model)
        ours = load(address, server, INFER, callers, message, SECONDS)
        rows.append(
            (
                alone.microseconds / 1000,
                ours.microseconds / 1000,
                ours.microseconds / alone.microseconds,
                alone.per_second,
                ours.per_second,
                ours.per_second / alone.per_second,
            )
        )
    cpu_alone, cpu, cpu_ratio, rate_alone, rate, rate_ratio = (
        statistics.median(column) for column in zip(*rows, strict=True)
    )
    print(f"{'ResNet-50, float32[1, 3, 224, 224]':36} {'alone':>8} {'ours':>8} ratio target")
    print(
        f"{'processor ms a request':36} {cpu_alone:8.1f} {cpu:8.1f} {cpu_ratio:5.2f} <= 1.05\n"
        f"{f'requests a second, {callers} callers':36} {rate_alone:8.1f} {rate:8.1f} "
        f"{rate_ratio:5.2f} >= 0.93"
    )


def load_often(client: Client, server: psutil.Process, model: Path) -> None:
    resident = []
    for _ in range(LOADS):
        client.load_network(model, device="CPU", name="often").unload()
        resident.append(server.memory_info().rss / 1e6)
    early, late = resident[SETTLED - 1], resident[-1]
    print(
        f"resident after load and unload {SETTLED} and {LOADS}: {early:.0f} and {late:.0f} MB, "
        f"ratio {late / early:.2f}, target <= 1.10"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, headrace() as (address, server):
        model, message = Path(folder) / "model.onnx", Path(folder) / "message"
        model.write_bytes(resnet50().SerializeToString())
        image = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
        message.write_bytes(request("resnet50", {"x": image}))
        with Client(address) as client:
            network = client.load_network(model, device="CPU", name="resnet50")
            compare(address, server, model, message)
            network.unload()
            load_often(client, server, model)


if __name__ == "__main__":
    main()
