"""A network as large as ResNet-50 on OPENVINO over the wire beside OpenVINO in-process; medians.

With ``alone MODEL PRECISION SECONDS`` it is the process that OpenVINO is alone in: as many streams
as processors, one thread and one infer request each. Prints runs, seconds and processor seconds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import psutil

from headrace.client import Client
from headrace.plugins.openvino.library import openvino
from headrace.runtime.processors import usable_processors
from tests.benchmark.busy import keep_busy
from tests.benchmark.resnet50 import resnet50
from tests.benchmark.servers import INFER, Load, headrace, load, request

ROUNDS = 5
SECONDS = 2.0
SHAPE = (1, 3, 224, 224)


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


def compare(
    address: str, server: psutil.Process, model: Path, message: Path, precision: str
) -> None:
    callers = 2 * usable_processors()
    rates = []
    for _ in range(ROUNDS):
        theirs = in_process(model, precision)
        ours = load(address, server, INFER, callers, message, SECONDS)
        rates.append(
            (
                theirs.per_second,
                ours.per_second,
                ours.per_second / theirs.per_second,
                ours.microseconds / theirs.microseconds,
            )
        )
    rate_alone, rate, ratio, cost = (
        statistics.median(column) for column in zip(*rates, strict=True)
    )
    print(
        f"ResNet-50 in {precision}, {callers} callers: {rate_alone:.1f} a second in-process, "
        f"{rate:.1f} over the wire, ratio {ratio:.3f}, target >= 0.95; processor time {cost:.3f}"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, headrace() as (address, server):
        model, message = Path(folder) / "model.onnx", Path(folder) / "message"
        model.write_bytes(resnet50().SerializeToString())
        image = np.random.default_rng(0).random(SHAPE, np.float32)
        message.write_bytes(request("resnet50", {"x": image}))
        with Client(address) as client:
            capabilities = client.get_metric("OPENVINO", "OPTIMIZATION_CAPABILITIES")
            for precision in ("f32", "bf16") if "BF16" in str(capabilities) else ("f32",):
                network = client.load_network(
                    model,
                    device="OPENVINO",
                    name="resnet50",
                    config={"INFERENCE_PRECISION_HINT": precision},
                )
                compare(address, server, model, message, precision)
                network.unload()


if __name__ == "__main__":
    if sys.argv[1:2] == ["alone"]:
        alone(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        main()
