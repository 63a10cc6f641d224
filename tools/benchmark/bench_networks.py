"""Networks as large as ResNet-50 and MobileNetV2 over the wire beside ONNX Runtime in-process, and
beside a bare gRPC server that runs them; medians of five.

uint8 images are scaled by the network's own first layers in-process, and by the server's
preprocessing over the wire. Then: what stays in memory after many loads and unloads of a network of
102 MB.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import psutil

from headrace.client import Client, InputOptions
from headrace.runtime.system.processors import usable_processors
from tools.benchmark.mobilenet_v2 import mobilenet_v2
from tools.benchmark.resnet50 import resnet50
from tools.benchmark.servers import (
    ECHO,
    INFER,
    Compared,
    compared,
    headrace,
    load,
    load_of,
    request,
    running,
)

ROUNDS = 5
SECONDS = 3.0
LOADS = 50
SETTLED = 5  # loads after which memory is held against what comes later
STREAMS = usable_processors()
CALLERS = 2 * STREAMS


class Case(NamedTuple):
    """A network, and how images come to it.

    Attributes:
        goal: the largest ratio of processor times.
    """

    name: str
    build: Callable[..., onnx.ModelProto]
    dtype: str
    goal: float

    @property
    def title(self) -> str:
        return f"{self.name}, {self.dtype}[1, 3, 224, 224]"

    @property
    def preprocessing(self) -> dict[str, InputOptions]:
        return {"x": {"dtype": "uint8", "scale": 255.0}} if self.dtype == "uint8" else {}


CASES = tuple(
    Case(name, build, dtype, goal)
    for name, build in (("ResNet-50", resnet50), ("MobileNetV2", mobilenet_v2))
    for dtype, goal in (("uint8", 1.05), ("float32", 1.10))
)


class Figures(NamedTuple):
    """
    Attributes:
        processor: microseconds a request.
        rate: requests a second.
        bare: microseconds a request of the bare server beside headrace's. The same callers ask both
            on the same processors, and both run the network on as many threads.
    """

    processor: Compared
    rate: Compared
    bare: Compared


def measure(
    address: str,
    server: psutil.Process,
    folder: Path,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
) -> Iterator[tuple[Case, Figures]]:
    """The cases' figures, in-process and by `CALLERS` callers of the server."""
    model, message = folder / "model.onnx", folder / "message"
    images = {"float32": np.ones((1, 3, 224, 224), np.float32)}
    images["uint8"] = images["float32"].astype(np.uint8)
    for case in CASES:
        model.write_bytes(case.build(dtype=case.dtype).SerializeToString())
        message.write_bytes(request("measured", {"x": images[case.dtype]}))
        with Client(address) as client:
            network = client.load_network(
                case.build(), device="CPU", name="measured", preprocessing=case.preprocessing
            )
            with running("-m", "tools.benchmark.bare_runtime", str(model), str(STREAMS)) as bare:
                found = [
                    (
                        load_of("tools.benchmark.inprocess", str(model), str(seconds)),
                        load(*bare, ECHO, CALLERS, message, seconds),
                        load(address, server, INFER, CALLERS, message, seconds),
                    )
                    for _ in range(rounds)
                ]
            network.unload()
        yield (
            case,
            Figures(
                compared((alone.microseconds, ours.microseconds) for alone, _, ours in found),
                compared((alone.per_second, ours.per_second) for alone, _, ours in found),
                compared((bare.microseconds, ours.microseconds) for _, bare, ours in found),
            ),
        )


def load_often(address: str, server: psutil.Process, model: Path) -> None:
    resident = []
    model.write_bytes(resnet50().SerializeToString())
    with Client(address) as client:
        for _ in range(LOADS):
            client.load_network(model, device="CPU", name="often").unload()
            resident.append(server.memory_info().rss / 1e6)
    early, late = resident[SETTLED - 1], statistics.median(resident[-SETTLED:])
    print(
        f"resident after load and unload {SETTLED} and {LOADS}: {early:.0f} and {late:.0f} MB, "
        f"ratio {late / early:.2f}, target <= 1.10"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name, headrace() as (address, server):
        folder = Path(name)
        print(f"{'':36} {'alone':>8} {'ours':>8} ratio")
        for case, (processor, rate, bare) in measure(address, server, folder):
            print(
                f"{case.title}\n"
                f"{'  processor ms a request':36} {processor.floor / 1000:8.1f} "
                f"{processor.ours / 1000:8.1f} {processor.ratio:5.2f} <= {case.goal:.2f}\n"
                f"{'  the same of a bare server':36} {bare.floor / 1000:8.1f} "
                f"{bare.ours / 1000:8.1f} {bare.ratio:5.2f}\n"
                f"{f'  requests a second, {CALLERS} callers':36} {rate.floor:8.1f} "
                f"{rate.ours:8.1f} {rate.ratio:5.2f}",
                flush=True,
            )
        load_often(address, server, folder / "model.onnx")


if __name__ == "__main__":
    main()
