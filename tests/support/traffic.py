"""Networks and callers that give the page something to show."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

import grpc
import numpy as np
import onnx
from onnx import TensorProto, helper

from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.integration.harness import CALL_SECONDS, infer_request

MARKUP: Final = "<img src=x onerror=document.title='hacked'>"
"""The name of a layer, as somebody with bad intentions writes it."""

_WIDTH: Final = 64


def chain() -> onnx.ModelProto:
    """A network of any number of rows, whose layers HETERO cuts into four subgraphs with
    `AFFINITIES`."""
    float_ = TensorProto.FLOAT
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"], name="square"),
        helper.make_node("Relu", ["a"], ["b"], name=MARKUP),
        helper.make_node("Sqrt", ["b"], ["c"], name="root"),
        helper.make_node("Neg", ["c"], ["d"], name="negate"),
        helper.make_node("Add", ["d", "a"], ["y"], name="join"),
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", float_, ["rows", _WIDTH])],
        [helper.make_tensor_value_info("y", float_, ["rows", _WIDTH])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


INPUTS: Final[Mapping[str, Any]] = {"x": np.ones((1, _WIDTH), np.float32)}
AFFINITIES: Final[Mapping[str, str]] = {
    "square": "CPU",
    MARKUP: "CPU",
    "root": "TEMPLATE",
    "negate": "CPU",
    "join": "TEMPLATE",
}


class Traffic:
    """Callers that send one request after the other, until the context ends.

    Args:
        connect: returns a new connection.
        networks: the networks to call.
    """

    def __init__(self, connect: Any, *networks: str) -> None:
        self._connect = connect
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(each,), daemon=True) for each in networks
        ]

    def __enter__(self) -> None:
        for each in self._threads:
            each.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()

    def _call(self, network: str) -> None:
        with self._connect() as channel:
            stub: Any = rpc.InferenceEngineStub(channel)  # type: ignore[no-untyped-call]
            request: pb.InferRequest = infer_request(network, INPUTS)
            while not self._stop.is_set():
                try:
                    stub.Infer(request, timeout=CALL_SECONDS)
                except grpc.RpcError:
                    self._stop.wait(0.2)
