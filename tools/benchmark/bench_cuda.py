"""ResNet-50 on CUDA over the wire beside ONNX Runtime in-process on the same GPU; medians.

With ``alone MODEL BATCH SECONDS`` it is the process that ONNX Runtime is alone in: two threads, one
session, arrays of the host, as the server's two streams. Prints runs, seconds and processor
seconds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import psutil

from headrace.client import Client
from headrace.plugins.cuda.backend.machine import PROVIDER, this_machine
from headrace.plugins.cuda.plugin import open_smallest
from headrace.runtime.errors import Unavailable
from tools.benchmark.busy import keep_busy
from tools.benchmark.resnet50 import resnet50
from tools.benchmark.servers import INFER, headrace, load, load_of, request

ROUNDS = 5
SECONDS = 3.0
WARM_SECONDS = 2.0
BATCHES = (1, 32)
STREAMS = 2
CALLERS = 4


def alone(path: str, batch: int, seconds: float) -> None:
    this_machine(open_smallest)  # which loads the libraries that lie among Python's packages
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    providers = [(PROVIDER, {"device_id": "0", "use_tf32": "0"})]
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    if PROVIDER not in session.get_providers():
        raise SystemExit(f"ONNX Runtime does not run by its {PROVIDER}")
    feed = {"x": np.ones((batch, 3, 224, 224), np.float32)}
    for _ in range(5):
        session.run(None, feed)
    keep_busy([partial(session.run, None, feed)] * STREAMS, seconds)


def compare(address: str, server: psutil.Process, folder: Path, batch: int) -> None:
    model, message = folder / f"model-{batch}.onnx", folder / f"message-{batch}"
    model.write_bytes(resnet50(batch).SerializeToString())
    images = np.random.default_rng(0).random((batch, 3, 224, 224), np.float32)
    message.write_bytes(request("resnet50", {"x": images}))
    rates = []
    with Client(address) as client:
        network = client.load_network(
            model, device="CUDA", name="resnet50", config={"NUM_STREAMS": str(STREAMS)}
        )
        load(address, server, INFER, CALLERS, message, WARM_SECONDS)
        for _ in range(ROUNDS):
            words = ("alone", str(model), str(batch), str(SECONDS))
            theirs = load_of("tools.benchmark.bench_cuda", *words)
            ours = load(address, server, INFER, CALLERS, message, SECONDS)
            rates.append(
                (
                    batch * theirs.per_second,
                    batch * ours.per_second,
                    ours.per_second / theirs.per_second,
                )
            )
        network.unload()
    rate_alone, rate, ratio = (statistics.median(column) for column in zip(*rates, strict=True))
    print(
        f"ResNet-50 in f32, batch {batch}, {CALLERS} callers: {rate_alone:.1f} images a second "
        f"in-process, {rate:.1f} over the wire, ratio {ratio:.3f}, target >= 0.9"
    )


def main() -> None:
    try:
        this_machine(open_smallest)
    except Unavailable as error:
        print(f"CUDA is not measured: {error}")
        return
    with tempfile.TemporaryDirectory() as folder, headrace() as (address, server):
        for batch in BATCHES:
            compare(address, server, Path(folder), batch)


if __name__ == "__main__":
    if sys.argv[1:2] == ["alone"]:
        alone(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        main()
