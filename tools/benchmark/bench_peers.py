"""Server processor time per tiny request beside KServe's SDK and MLServer, medians of five.

All of them answer the same ModelInfer request of the Open Inference Protocol, closed loops of one
load generator in C++; a bare grpc.aio echo of the same bytes stands beside them. All three run
the same network with ONNX Runtime, headrace on the device CPU. So does a second bare server, which
parses nothing.

``make benchmark-peers`` makes the environments and runs this. A peer without one is left out.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import numpy as np
import psutil

from headrace.oip import open_inference_pb2 as oip
from tools.benchmark.bench_requests import load_tiny, network
from tools.benchmark.generator import Generated, generate, generator
from tools.benchmark.servers import ECHO, HERE, INFER, headrace, running

ROUNDS = 5
SECONDS = 2.0
START_SECONDS = 120.0
CALLERS = (1, 8, 32)
MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
PEERS = {"KServe SDK": "kserve", "MLServer": "mlserver"}


class Target(NamedTuple):
    """A server under load, and what it is asked."""

    name: str
    address: str
    process: psutil.Process
    method: str
    message: Path


def python_of(module: str) -> Path:
    """The interpreter of a peer's own environment, which may not exist."""
    return Path(__file__).parents[2] / f".venv-{module}" / "bin" / "python"


@contextmanager
def peer(module: str, *more: str) -> Iterator[tuple[str, psutil.Process]]:
    """A peer's address, once it is ready, and its process.

    Args:
        more: further arguments of its program.
    """
    python = python_of(module)
    grpc_port, http_port = free_port(), free_port()
    script = str(HERE / "peers" / f"{module}_server.py")
    quiet = subprocess.DEVNULL
    with tempfile.NamedTemporaryFile(suffix=".onnx") as model, ExitStack() as stack:
        model.write(network("Add", (1, 16)).SerializeToString())
        model.flush()
        command = [str(python), script, str(grpc_port), str(http_port), model.name, *more]
        process = stack.enter_context(subprocess.Popen(command, stdout=quiet, stderr=quiet))
        try:
            address = f"127.0.0.1:{grpc_port}"
            wait_until_ready(address)
            yield address, psutil.Process(process.pid)
        finally:
            process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def wait_until_ready(address: str) -> None:
    """
    Raises:
        TimeoutError: the server did not say that its model is ready.
    """
    end = time.monotonic() + START_SECONDS
    ask = oip.ModelReadyRequest(name="tiny").SerializeToString()
    with grpc.insecure_channel(address) as channel:
        ready = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")
        while time.monotonic() < end:
            try:
                answer = ready(ask, timeout=5, wait_for_ready=True)
            except grpc.RpcError:
                continue
            if oip.ModelReadyResponse.FromString(answer).ready:
                return
    raise TimeoutError(f"{address} is not ready after {START_SECONDS:g} s")


def measure(program: Path, target: Target, callers: int, seconds: float) -> Generated:
    where = target.address, target.process, target.method, target.message
    return generate(program, *where, seconds=seconds, callers=callers)


def open_inference(folder: Path) -> Path:
    """A file with the tiny request in the Open Inference Protocol."""
    x = np.ones((1, 16), np.float32)
    tensor = oip.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=x.shape)
    ask = oip.ModelInferRequest(
        model_name="tiny", inputs=[tensor], raw_input_contents=[x.tobytes()]
    )
    file = folder / "open_inference"
    file.write_bytes(ask.SerializeToString())
    return file


def start(stack: ExitStack, folder: Path) -> list[Target]:
    """Starts all servers that are installed, until the stack ends."""
    model = folder / "model.onnx"
    model.write_bytes(network("Add", (1, 16)).SerializeToString())
    echo = stack.enter_context(running(str(HERE / "echo_server.py")))
    bare = stack.enter_context(running("-m", "tools.benchmark.bare_runtime", str(model)))
    ours = stack.enter_context(headrace())
    theirs, own = open_inference(folder), load_tiny(folder, ours[0])
    targets = [
        Target("bare grpc.aio echo", *echo, ECHO, theirs),
        Target("the same, runs the network", *bare, ECHO, theirs),
        Target("headrace", *ours, MODEL_INFER, theirs),
        Target("headrace, own protocol", *ours, INFER, own),
    ]
    for title, module in PEERS.items():
        if not python_of(module).exists():
            continue
        server = stack.enter_context(peer(module))
        targets.append(Target(title, *server, MODEL_INFER, theirs))
    return targets


def rounds_of(
    callers: int,
    targets: list[Target],
    program: Path,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
) -> list[list[Generated]]:
    """Measures all servers in turns, so that each round's ratios are of the same seconds."""
    for each in targets:
        measure(program, each, callers, min(seconds, 0.5))
    return [[measure(program, each, callers, seconds) for each in targets] for _ in range(rounds)]


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        program = stack.enter_context(generator())
        targets = start(stack, Path(name))
        for callers in CALLERS:
            show(callers, targets, program)


def show(callers: int, targets: list[Target], program: Path) -> None:
    rounds = rounds_of(callers, targets, program)
    names = [each.name for each in targets]
    peers = [each for each in PEERS if each in names]
    print(f"\n{callers} callers, one connection: the server's processor time per request")
    ratio = "".join(f"{f'/ {title}':>14}" for title in ("echo", *peers))
    print(f"{'':28}{'us':>8}{'calls/s':>10}{'median us':>11}{ratio}")
    for index, target in enumerate(targets):
        mine = [each[index] for each in rounds]
        used, rate, latency = (
            statistics.median(getattr(each, name) for each in mine)
            for name in ("used", "per_second", "median")
        )
        line = f"{target.name:28}{used:8.0f}{rate:10.0f}{latency:11.0f}"
        for other in (0, *map(names.index, peers)):
            pairs = [each[index].used / each[other].used for each in rounds]
            line += f"{statistics.median(pairs):14.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
