"""Processor time of a request's stages, each alone in a loop in this process, in microseconds.

In a busy server the processor's caches are cold between requests, so a stage costs up to three
times as much there. Usage: stages. Prints a JSON object: for each network, the stages in order.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import numpy as np
import onnxruntime

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest
from headrace.server.services.inference import decode, encode, encode_small, part_spans
from headrace.server.serving.call import InferCall, InferResult
from headrace.server.serving.layouts import CallLayouts
from headrace.wire.message import parse_infer_request, serialize
from tools.benchmark.bench_requests import SHAPES, network
from tools.benchmark.servers import request

REPEATS = 20
ROUND_SECONDS = 0.03


def microseconds(call: Callable[[], object]) -> float:
    """The processor time of one call, all threads counted; the best of several rounds."""
    call()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < ROUND_SECONDS:
        call()
        count += 1
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in range(count):
            call()
        best = min(best, (time.process_time() - start) / count)
    return best * 1e6


def run(executable: ExecutableNetwork, inputs: dict[str, np.ndarray], *, inline: bool) -> Job:
    """One request through the runtime."""
    ended = threading.Event()
    job = Job(inputs, lambda _: ended.set(), may_run_inline=inline)
    executable.submit(job)
    ended.wait()
    return job


def stages(core: Core, name: str, operator: str) -> dict[str, float]:
    x = np.ones(SHAPES[name], np.float32)
    model = network(operator, SHAPES[name]).SerializeToString()
    ask = LoadRequest(name, DeviceName.parse("CPU"), {})
    entry = core.load_network(ask, lambda: Network.from_bytes(model, spooled=True)).result()
    executable = entry.executable
    assert executable is not None
    data, layouts = request(name, {"x": x}), CallLayouts(part_spans)

    def parse() -> InferCall:
        known = layouts.read(data)
        if known is None:
            known = decode(*parse_infer_request(data))
            layouts.learn(data, known)
        return known

    job = run(executable, {"x": x}, inline=False)
    result = InferResult(parse(), job, job.outputs)

    def reply() -> bytes:
        return encode_small("r1", result) or serialize(*encode("r1", result))

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    execute = microseconds(lambda: session.run(["y"], {"x": x}))
    hopping = microseconds(lambda: run(executable, {"x": x}, inline=False))
    staying = microseconds(lambda: run(executable, {"x": x}, inline=True))
    return {
        "parse": microseconds(parse),
        "admit, queue, count": max(min(staying, hopping) - execute, 0.0),
        "hop to a stream and back": max(hopping - staying, 0.0),
        "execute": execute,
        "reply": microseconds(reply),
    }


def main() -> None:
    core = Core([installed_plugins()["CPU"]], blob_key=b"k" * 32)
    found = {
        name: stages(core, name, kind) for name, kind in (("tiny", "Add"), ("large", "Identity"))
    }
    core.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
