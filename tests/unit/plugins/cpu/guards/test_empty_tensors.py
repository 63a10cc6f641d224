"""A layer that sums over an axis without elements answers as ONNX says, or not at all.

ONNX Runtime leaves some of these outputs as an earlier request wrote them. So each request runs
after two others, whose elements differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.plugins import cpu
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.reference.evaluator import CorrectedEvaluator
from headrace.testing.case import network_of, parse
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services

Shapes = Sequence[Sequence[int]]

LAYERS: list[tuple[str, Shapes]] = [
    ("y = MatMul(a, b)", [(3, 4), (4, 5)]),
    ("y = MatMul(a, b)", [(2, 3, 4), (4,)]),
    ("y = MatMul(a, b)", [(4,), (2, 4, 5)]),
    ("y = MatMul(a, b)", [(2, 3, 4), (2, 4, 5)]),
    ("y = MatMul(a, b)", [(3, 4), (2, 4, 5)]),
    ("y = Gemm(a, b, c)", [(3, 4), (4, 5), (5,)]),
    ("y = Gemm<beta=0.5>(a, b, c)", [(3, 4), (4, 5), (5,)]),
    ("y = Gemm<beta=0.0, transA=1>(a, b, c)", [(4, 3), (4, 5), (5,)]),
    ("y = Gemm<transA=1, transB=1>(a, b)", [(4, 3), (5, 4)]),
    ('y = Einsum<equation="bij,bjk->bik">(a, b)', [(2, 3, 4), (2, 4, 5)]),
    ('y = Einsum<equation="ij,j->i">(a, b)', [(3, 4), (4,)]),
    ('y = Einsum<equation="ij->i">(a)', [(3, 4)]),
    ("y = Conv(a, b, c)", [(2, 3, 5, 5), (4, 3, 2, 2), (4,)]),
    ("y = ConvTranspose<strides=[3,3]>(a, b)", [(2, 3, 5, 5), (3, 4, 2, 2)]),
    ("y = DeformConv(a, b, c)", [(1, 1, 3, 3), (1, 1, 2, 2), (1, 8, 2, 2)]),
    ("y = MatMulInteger(a, b)", [(3, 4), (4, 5)]),
    ("y = MatMulInteger(a, b)", [(2, 3, 4), (4,)]),
    ("y = ConvInteger(a, b)", [(2, 3, 5, 5), (4, 3, 2, 2)]),
    ("y = QLinearMatMul(a, one, zero, b, one, zero, one, zero)", [(2, 3, 4), (4, 5)]),
    ("y = QLinearConv(a, one, zero, b, one, zero, one, zero)", [(2, 3, 5, 5), (4, 3, 2, 2)]),
    ("y = Attention(a, b, c)", [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 6)]),
    ("y = ReduceSum<keepdims=0>(a)", [(3, 4)]),
    ("y = GlobalMaxPool(a)", [(2, 3, 4, 4)]),
    ("y = GridSample(a, b)", [(1, 2, 4, 4), (1, 3, 3, 2)]),
    ("y = LayerNormalization(a, b, c)", [(3, 4), (4,), (4,)]),
    ("y = InstanceNormalization(a, b, c)", [(2, 3, 4), (3,), (3,)]),
    ("y = Softmax(a)", [(2, 3, 4)]),
    ('"", y = RNN<hidden_size=3>(a, b, c)', [(2, 1, 4), (1, 3, 4), (1, 3, 3)]),
    ('"", y = GRU<hidden_size=3>(a, b, c)', [(2, 1, 4), (1, 9, 4), (1, 9, 3)]),
    ('"", "", y = LSTM<hidden_size=3>(a, b, c)', [(2, 1, 4), (1, 12, 4), (1, 12, 3)]),
]
UNDEFINED = ("RNN", "GRU", "LSTM")  # ONNX does not say what there is over no steps


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with services() as offered:
        config = {"NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": "1"}
        yield cpu.create_plugin("CPU", offered, config)


@pytest.mark.parametrize("ranked", [False, True])
@pytest.mark.parametrize(("layer", "shapes"), LAYERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference takes means of nothing
def test_a_sum_of_nothing_is_right_or_refused(
    plugin: Plugin, layer: str, shapes: Shapes, ranked: bool
) -> None:
    model = model_of(layer, shapes, ranked)
    dtype: Any = np.uint8 if "Integer" in layer or "QLinear" in layer else np.float32
    compiled = plugin.load_network(Load(network_of(model)))
    request = InferRequest(compiled)
    evaluator: Any = CorrectedEvaluator(model)

    def feed(sizes: Shapes, value: int) -> dict[str, Any]:
        return {name: np.full(size, value, dtype) for name, size in zip("abc", sizes, strict=False)}

    try:
        for sizes in emptied(shapes):
            for earlier in (7, 3):
                request.infer(feed(shapes, earlier))
                try:
                    found: Any = request.infer(feed(sizes, 2))["y"]
                except InvalidArgument:
                    break
                if any(op_type in layer for op_type in UNDEFINED):
                    assert not found.any(), sizes
                elif found.size:
                    (wanted,) = evaluator.run(None, feed(sizes, 2))
                    np.testing.assert_allclose(found, wanted, err_msg=f"{sizes}")
    finally:
        compiled.close()


def model_of(layer: str, shapes: Shapes, ranked: bool) -> onnx.ModelProto:
    """A network of the layer, whose inputs may have any sizes, and any ranks if not `ranked`."""
    quantised = "Integer" in layer or "QLinear" in layer
    ports = []
    for name, shape in zip("abc", shapes, strict=False):
        sizes = ", ".join(f"{name}{axis}" for axis in range(len(shape)))
        ports.append(f"{'uint8' if quantised else 'float'}[{sizes if ranked else ''}] {name}")
    output = "int32" if "Integer" in layer else "uint8" if quantised else "float"
    constants = "<float one = {1}, uint8 zero = {0}>" if "QLinear" in layer else ""
    text = f"g ({', '.join(ports)}) => ({output}[] y) {constants} {{ {layer} }}"
    return parse(text, opset=23)


def emptied(shapes: Shapes) -> Iterator[Shapes]:
    """The shapes with one or two axes empty, and with all axes of one size empty together."""
    places = [(at, axis) for at, shape in enumerate(shapes) for axis in range(len(shape))]
    for empty in (each for count in (1, 2) for each in combinations(places, count)):
        yield [
            [0 if (at, axis) in empty else size for axis, size in enumerate(shape)]
            for at, shape in enumerate(shapes)
        ]
    for gone in {size for shape in shapes for size in shape}:
        yield [[0 if size == gone else size for size in shape] for shape in shapes]
