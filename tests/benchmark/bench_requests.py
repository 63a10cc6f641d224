"""Server processor time per request, beside a bare echo in the same minute; medians of five."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import onnx
from onnx import TensorProto, helper

from headrace.client import Client
from tests.benchmark.servers import HERE, INFER, headrace, load, request, running

ROUNDS = 5
SECONDS = 1.5


class Case(NamedTuple):
    """A way of asking, held against the echo with a message of the same size."""

    name: str
    network: str
    mode: str
    callers: int
    target: float | None


CASES = (
    Case("tiny, unary, 32 callers", "tiny", INFER, 32, 1.6),
    Case("tiny, 1 stream, 32 in flight", "tiny", "stream:1", 32, 0.9),
    Case("tiny, 8 streams, 4 in flight each", "tiny", "stream:8", 32, 0.6),
    Case("the same, a message each, 1 stream", "tiny", "single:1", 32, None),
    Case("the same, a message each, 8 streams", "tiny", "single:8", 32, None),
    Case("600 KB identity, unary, 8 callers", "large", INFER, 8, 1.5),
)
SHAPES = {"tiny": (1, 16), "large": (1, 3, 224, 224)}


def network(operator: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    inputs = ["x", "x"] if operator == "Add" else ["x"]
    node = helper.make_node(operator, inputs, ["y"])
    graph = helper.make_graph([node], operator, ports[:1], ports[1:])
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        running(str(HERE / "echo_server.py")) as (echo, echo_process),
        headrace() as (address, server_process),
    ):
        idle_bytes = server_process.memory_info().rss
        files = {}
        with Client(address) as client:
            for name, operator in (("tiny", "Add"), ("large", "Identity")):
                client.load_network(network(operator, SHAPES[name]), device="CPU", name=name)
                files[name] = Path(folder) / name
                files[name].write_bytes(request(name, {"x": np.ones(SHAPES[name], np.float32)}))
        print(f"{'case':36} {'echo us':>8} {'ours us':>8} {'ratio':>6} {'target':>7}")
        for case in CASES:
            pairs = []
            for _ in range(ROUNDS):
                how = (case.callers, files[case.network], SECONDS)
                floor = load(echo, echo_process, "/Echo/Echo", *how).microseconds
                ours = load(address, server_process, case.mode, *how).microseconds
                pairs.append((ours / floor, floor, ours))
            ratio, floor, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
            bound = "" if case.target is None else f"<= {case.target}"
            print(f"{case.name:36} {floor:8.0f} {ours:8.0f} {ratio:6.2f} {bound:>7}")
        print(f"idle server: {idle_bytes / 1e6:.0f} MB resident (target <= 200)")


if __name__ == "__main__":
    main()
