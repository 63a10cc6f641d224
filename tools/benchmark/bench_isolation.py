"""What a process of its own costs a device's requests: CPU and OPENVINO, each in the server's
process and in a process of its own.

All are in one server, and are asked in turns within the same minute; figures are medians, ratios
medians of the rounds' ratios. Processor time is the server's and the worker's together; the client
takes time of the same processors and is not in it. Memory is what the processes alone hold (USS).

``bench_isolation DEVICE ROUNDS CASE`` measures one device, in as many rounds, in cases whose
names begin so.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import psutil

from headrace.client import Client, InputOptions, Network
from tools.benchmark.bench_batch import closed_loops
from tools.benchmark.bench_requests import SHAPES, network
from tools.benchmark.resnet50 import resnet50
from tools.benchmark.servers import headrace

ROUNDS = 5
SECONDS = 1.0
CONFIG = """
[plugins.WITHIN]
device = "{device}"
[plugins.WITHIN.config]
ISOLATION = "NONE"
[plugins.APART]
device = "{device}"
[plugins.APART.config]
ISOLATION = "PROCESS"
"""


class Case(NamedTuple):
    """
    Attributes:
        callers: at a time, of one measurement each.
        dtype: of the input as it is sent.
        seconds: of a measurement.
    """

    name: str
    model: onnx.ModelProto
    shape: tuple[int, ...]
    callers: tuple[int, ...]
    dtype: str = "float32"
    seconds: float = SECONDS


def cases(device: str) -> Iterator[Case]:
    yield Case("tiny", network("Add", SHAPES["tiny"]), SHAPES["tiny"], (1, 32))
    yield Case("600 KB", network("Identity", SHAPES["large"]), SHAPES["large"], (1, 8))
    if device == "OPENVINO":
        model = resnet50()
        yield Case("ResNet-50 float32", model, SHAPES["large"], (1, 4), seconds=4 * SECONDS)
        yield Case("ResNet-50 uint8", model, SHAPES["large"], (4,), "uint8", 4 * SECONDS)


def compare(
    server: psutil.Process,
    address: str,
    networks: tuple[Network, Network],
    case: Case,
    callers: int,
    rounds: int,
) -> list[float]:
    """Each figure of the server's process, of one apart, and the ratio."""
    found = []
    inputs = {"x": np.ones(case.shape, case.dtype)}
    for _ in range(rounds):
        within, apart = (
            closed_loops(server, address, each, inputs, callers, case.seconds) for each in networks
        )
        found.append([(a, b, b / a) for a, b in zip(within, apart, strict=True)])
    return [
        statistics.median(each)
        for figure in zip(*found, strict=True)
        for each in zip(*figure, strict=True)
    ]


def megabytes(server: psutil.Process) -> float:
    processes = (server, *server.children(recursive=True))
    return float(sum(each.memory_full_info().uss for each in processes)) / 1e6


def measure(device: str, rounds: int, only: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "headrace.toml"
        config.write_text(CONFIG.format(device=device))
        options = ("--config", str(config), "--devices", "APART,WITHIN")
        with headrace(*options) as (address, server), Client(address) as client:
            print(f"{device:26} {'per second':>22} {'p50 ms':>20} {'processor us':>22}")
            columns = " ".join(f"{word:>7}" for word in 3 * ("within", "apart", "ratio"))
            print(f"{'':26} {columns}")
            for case in cases(device):
                if not case.name.startswith(only):
                    continue
                print(f"{case.name:26}", end="", flush=True)
                networks = []
                before = megabytes(server)
                for place in ("WITHIN", "APART"):
                    sent: InputOptions = {"dtype": case.dtype}
                    preprocessing = {} if case.dtype == "float32" else {"x": sent}
                    name = f"{case.name.replace(' ', '_')}-{place}"
                    networks.append(
                        client.load_network(
                            case.model, device=place, name=name, preprocessing=preprocessing
                        )
                    )
                    now = megabytes(server)
                    print(f" {place.lower()} {now - before:.0f} MB", end="", flush=True)
                    before = now
                print()
                for callers in case.callers:
                    within, apart = networks
                    figures = compare(server, address, (within, apart), case, callers, rounds)
                    plural = "s" if callers > 1 else ""
                    row = " ".join(
                        f"{value:7.0f}" if value >= 100 else f"{value:7.2f}" for value in figures
                    )
                    print(f"{f'  {callers} caller{plural}':26} {row}", flush=True)
                for each in networks:
                    each.unload()


def main() -> None:
    devices = sys.argv[1:2] or ["CPU", "OPENVINO"]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    for device in devices:
        measure(device, rounds, only)


if __name__ == "__main__":
    main()
