"""A network as large as ResNet-50 on OPENVINO over the wire beside OpenVINO in-process; medians.

Over the wire come 600 KB of float32 a call, and the same images as uint8 on one stream, which are a
quarter of that. Client and server share the processors, all of which OpenVINO has in-process. What
of the difference is gRPC's shows `bare_openvino.py`, a server that does nothing else.

With ``alone MODEL PRECISION SECONDS`` it is the process that OpenVINO is alone in: as many streams
as processors, one thread and one infer request each. Prints runs, seconds and processor seconds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import psutil

from headrace.client import Client
from headrace.plugins.openvino.library import openvino
from headrace.runtime.system.processors import usable_processors
from tools.benchmark.busy import keep_busy
from tools.benchmark.resnet50 import resnet50
from tools.benchmark.servers import HERE, INFER, Load, headrace, load, request, running

ROUNDS = 5
SECONDS = 5.0
SHAPE = (1, 3, 224, 224)
TARGET = ">= 0.95"


def alone(path: str, precision: str, seconds: float) -> None:
    streams = usable_processors()
    properties = {
        "INFERENCE_PRECISION_HINT": precision,
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": streams,
    }
    model = openvino.Core().compile_model(path, "CPU", properties)
    image = openvino.Tensor(np.ones(SHAPE, np.float32), shared_memory=False)
    requests = [model.create_infer_request() for _ in range(streams)]
    for each in requests:
        each.set_input_tensor(image)
        each.infer()
    runs = [partial(each.infer, share_inputs=True, share_outputs=True) for each in requests]
    keep_busy(runs, seconds)


def in_process(model: Path, precision: str) -> Load:
    command = [sys.executable, __file__, "alone", str(model), precision, str(SECONDS)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    runs, took, used = out.split()
    return Load(int(runs), float(took), float(used))


class Way(NamedTuple):
    """How images come, and to whom: `mode` and `message` as load.py has them."""

    name: str
    address: str
    server: psutil.Process
    mode: str
    message: Path
    target: str


def compare(ways: Sequence[Way], model: Path, precision: str) -> None:
    callers = 2 * usable_processors()
    rates: dict[str, list[tuple[float, ...]]] = {way.name: [] for way in ways}
    for _ in range(ROUNDS):
        theirs = in_process(model, precision)
        for way in ways:
            ours = load(way.address, way.server, way.mode, callers, way.message, SECONDS)
            ratio = ours.per_second / theirs.per_second
            cost = ours.microseconds / theirs.microseconds
            rates[way.name].append((theirs.per_second, ours.per_second, ratio, cost))
    for way in ways:
        medians = map(statistics.median, zip(*rates[way.name], strict=True))
        alone, rate, ratio, cost = medians
        print(
            f"{precision:9} {way.name:15} {alone:10.1f} {rate:8.1f} {ratio:6.3f} {way.target:>7} "
            f"{cost:14.3f}"
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, headrace() as (address, server):
        model = Path(folder) / "model.onnx"
        model.write_bytes(resnet50().SerializeToString())
        images = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
        messages = {name: Path(folder) / name for name in ("float32", "uint8", "bare")}
        for name in ("float32", "uint8"):
            messages[name].write_bytes(request(name, {"x": images.astype(name)}))
        messages["bare"].write_bytes(images.astype(np.float32).tobytes())
        print("a second: precision, images   in-process over wire  ratio  target processor time")
        with Client(address) as client:
            capabilities = client.get_metric("OPENVINO", "OPTIMIZATION_CAPABILITIES")
            for precision in ("f32", "bf16") if "BF16" in str(capabilities) else ("f32",):
                networks = [
                    client.load_network(
                        model,
                        device="OPENVINO",
                        name=name,
                        config={"INFERENCE_PRECISION_HINT": precision},
                        preprocessing={} if name == "float32" else {"x": {"dtype": name}},
                    )
                    for name in ("float32", "uint8")
                ]
                command = (str(HERE / "bare_openvino.py"), str(model), precision)
                with running(*command) as bare:
                    ways = (
                        Way("float32, unary", address, server, INFER, messages["float32"], TARGET),
                        Way("the same, bare", *bare, "/Bare/Infer", messages["bare"], ""),
                        Way(
                            "uint8, 1 stream",
                            address,
                            server,
                            "stream:1",
                            messages["uint8"],
                            TARGET,
                        ),
                    )
                    compare(ways, model, precision)
                for network in networks:
                    network.unload()


if __name__ == "__main__":
    if sys.argv[1:2] == ["alone"]:
        alone(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        main()
