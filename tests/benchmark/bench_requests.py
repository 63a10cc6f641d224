"""Server processor time per request, beside a bare echo in the same minute; medians of five."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

from headrace.client import Client
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import encode_values
from headrace.wire.message import serialize

HERE = Path(__file__).parent
INFER = "/headrace.v1.InferenceEngine/Infer"
ROUNDS = 5
SECONDS = 1.5


class Case(NamedTuple):
    """A way of asking, held against the echo with a message of the same size."""

    name: str
    network: str
    mode: str
    callers: int
    target: float


CASES = (
    Case("tiny, unary, 32 callers", "tiny", INFER, 32, 1.6),
    Case("tiny, 1 stream, 32 in flight", "tiny", "stream:1", 32, 0.9),
    Case("tiny, 8 streams, 4 in flight each", "tiny", "stream:8", 32, 0.6),
    Case("600 KB identity, unary, 8 callers", "large", INFER, 8, 1.5),
)
SHAPES = {"tiny": (1, 16), "large": (1, 3, 224, 224)}


@contextmanager
def running(*command: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server and the first line that it prints."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), psutil.Process(process.pid)
        process.send_signal(signal.SIGTERM)


def network(operator: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    inputs = ["x", "x"] if operator == "Add" else ["x"]
    node = helper.make_node(operator, inputs, ["y"])
    graph = helper.make_graph([node], operator, ports[:1], ports[1:])
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def message(name: str) -> bytes:
    request = pb.InferRequest(network=name)
    attachments: list[object] = []
    array = np.ones(SHAPES[name], np.float32)
    encode_values({"x": array}, request.inputs, attachments)  # type: ignore[arg-type]
    return serialize(request, attachments)  # type: ignore[arg-type]


def cpu_microseconds(
    address: str, server: psutil.Process, mode: str, callers: int, file: Path
) -> float:
    """The server's processor time per reply under load."""
    before = server.cpu_times()
    command = [sys.executable, str(HERE / "load.py"), address, mode, str(callers), str(SECONDS)]
    out = subprocess.run([*command, str(file)], capture_output=True, text=True, check=True).stdout
    after = server.cpu_times()
    used = after.user + after.system - before.user - before.system
    return used / int(out.split()[0]) * 1e6


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        running(str(HERE / "echo_server.py")) as (echo, echo_process),
        running("-m", "headrace.server", "--port", "0", "--metrics-port", "0", "--json") as (
            line,
            server_process,
        ),
    ):
        address = json.loads(line)["grpc"]
        idle_bytes = server_process.memory_info().rss
        files = {}
        with Client(address) as client:
            for name, operator in (("tiny", "Add"), ("large", "Identity")):
                client.load_network(network(operator, SHAPES[name]), device="CPU", name=name)
                files[name] = Path(folder) / name
                files[name].write_bytes(message(name))
        print(f"{'case':36} {'echo us':>8} {'ours us':>8} {'ratio':>6} {'target':>7}")
        for case in CASES:
            pairs = []
            for _ in range(ROUNDS):
                file = files[case.network]
                floor = cpu_microseconds(echo, echo_process, "/Echo/Echo", case.callers, file)
                ours = cpu_microseconds(address, server_process, case.mode, case.callers, file)
                pairs.append((ours / floor, floor, ours))
            ratio, floor, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
            bound = f"<= {case.target}"
            print(f"{case.name:36} {floor:8.0f} {ours:8.0f} {ratio:6.2f} {bound:>7}")
        print(f"idle server: {idle_bytes / 1e6:.0f} MB resident (target <= 200)")


if __name__ == "__main__":
    main()
