"""Small networks for tests, and the means to run them on onnx's reference implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from headrace.runtime.network.network import Network

FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
node = helper.make_node


def value(name: str, shape: Sequence[int | str | None] | None = (2, 3), dtype: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    initializers: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(a, name) for name, a in (initializers or {}).items()]
    return helper.make_graph(list(nodes), "g", list(inputs), list(outputs), tensors)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    initializers: Mapping[str, np.ndarray[Any, Any]] | None = None,
    *,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(each, 1) for each in domains]
    return helper.make_model(
        graph(nodes, inputs, outputs, initializers),
        opset_imports=opsets,
        functions=list(functions),
        ir_version=10,
    )


def function(name: str, nodes: Sequence[onnx.NodeProto], domain: str = "f") -> onnx.FunctionProto:
    """A function of one input `a` and one output `b`."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_function(domain, name, ["a"], ["b"], list(nodes), opsets)


def run(it: Network | onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    proto = onnx.ModelProto.FromString(it.to_bytes()) if isinstance(it, Network) else it
    evaluator = ReferenceEvaluator(proto)
    return dict(zip(evaluator.output_names, evaluator.run(None, dict(feeds)), strict=True))


def chain() -> onnx.ModelProto:
    """x → Relu → Identity → Relu → y, unnamed."""
    nodes = [node("Relu", ["x"], ["a"]), node("Identity", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    return model(nodes, [value("x")], [value("y")])


def branches() -> onnx.ModelProto:
    """y = If(flag) then Relu(x) else Identity(h), where h = Neg(x)."""
    then = graph([node("Relu", ["x"], ["t"])], outputs=[value("t")])
    other = graph([node("Identity", ["h"], ["e"])], outputs=[value("e")])
    nodes = [
        node("Neg", ["x"], ["h"]),
        node("If", ["flag"], ["y"], name="if", then_branch=then, else_branch=other),
    ]
    inputs = [value("x"), value("flag", (), TensorProto.BOOL)]
    return model(nodes, inputs, [value("y")])


def image_network(size: int = 8) -> onnx.ModelProto:
    """A small residual network with random weights: float32[N,3,size,size] to float32[N,5]."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray[Any, Any]:
        return random.standard_normal(shape).astype(np.float32)

    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        node("Add", ["c2", "r1"], ["s"]),
        node("Relu", ["s"], ["r2"]),
        node("GlobalAveragePool", ["r2"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["y"]),
    ]
    weights = {
        "w1": weight(4, 3, 3, 3),
        "b1": weight(4),
        "w2": weight(4, 4, 3, 3),
        "w3": weight(4, 5),
        "b3": weight(5),
    }
    return model(nodes, [value("x", ("N", 3, size, size))], [value("y", ("N", 5))], weights)


def attention_network() -> onnx.ModelProto:
    """One transformer block with random weights: float32[N,T,8] to the same."""
    random = np.random.default_rng(1)
    weights = {
        name: random.standard_normal((8, 8)).astype(np.float32) for name in ("q", "k", "v", "o")
    }
    weights |= {"g": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}
    weights["root"] = np.array(np.sqrt(8), np.float32)
    nodes = [
        node("LayerNormalization", ["x", "g", "b"], ["n"], axis=-1),
        *(node("MatMul", ["n", name], [f"n{name}"]) for name in "qkv"),
        node("Transpose", ["nk"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["nq", "kt"], ["scores"]),
        node("Div", ["scores", "root"], ["scaled"]),
        node("Softmax", ["scaled"], ["attention"], axis=-1),
        node("MatMul", ["attention", "nv"], ["mixed"]),
        node("MatMul", ["mixed", "o"], ["out"]),
        node("Add", ["out", "x"], ["y"]),
    ]
    return model(nodes, [value("x", ("N", "T", 8))], [value("y", ("N", "T", 8))], weights)
