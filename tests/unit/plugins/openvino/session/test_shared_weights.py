"""Layers that read the same weights in different ways each get their own packed weights.

OpenVINO alone gives one the other's, which is tested too, so that a rule without which nothing is
wrong any more is found out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.session.shared_weights import separate_weights
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest
from tests.support.openvino_alone import alone

RNG = np.random.default_rng(3)
SQUARE = RNG.standard_normal((5, 5), np.float32)
WINDOW = RNG.standard_normal((4, 4, 3, 3), np.float32)
HEAD = "g (float[B,5] x) => (float[B,5] y, float[B,5] z)"
IMAGES = "g (float[B,4,5,5] x) => (float[B,4,5,5] y, float[B,4,5,5] z)"
LOOPED = HEAD.replace("x)", "x, int64 n, bool go)")
IN_LOOP = """z = Loop(n, go, x) <body = b (int64 i, bool c, float[B,5] v)
    => (bool d, float[B,5] s) { d = Identity(c) s = Gemm<transB = 1>(v, m) }>"""
KEPT = "y = Conv<pads = [1, 1, 1, 1]>(x, w)"
TURNED = "z = ConvTranspose<pads = [1, 1, 1, 1]>(x, w)"
SUMS = 'z = Einsum<equation = "bchw,kw->bchk">(x, m)'
SHARED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gemm": (HEAD, "y = Gemm(x, m) z = Gemm<transB = 1>(x, m)", {"m": SQUARE}),
    "gemm_turned_first": (HEAD, "z = Gemm<transB = 1>(x, m) y = Gemm(x, m)", {"m": SQUARE}),
    "product": (HEAD, "y = MatMul(x, m) t = Transpose(m) z = MatMul(x, t)", {"m": SQUARE}),
    "thrice": (
        HEAD,
        "y = Gemm(x, m) a = Gemm<transB = 1>(x, m) z = Gemm<transB = 1>(a, m)",
        {"m": SQUARE},
    ),
    "quantised": (
        HEAD,
        "d = DequantizeLinear(m, s) y = MatMul(x, d) t = Transpose(d) z = MatMul(x, t)",
        {"m": np.arange(25, dtype=np.int8).reshape(5, 5), "s": np.float32(0.5)},
    ),
    "einsum": (IMAGES, f"y = MatMul(x, m) {SUMS}", {"m": SQUARE}),
    "einsum_first": (IMAGES, f"{SUMS} y = MatMul(x, m)", {"m": SQUARE}),
    "convolution": (IMAGES, f"{KEPT} {TURNED}", {"w": WINDOW}),
    "convolution_turned_first": (IMAGES, f"{TURNED} {KEPT}", {"w": WINDOW}),
}
COPIES = "y = Gemm(x, m) z = Gemm<transB = 1>(x, c)"
"""Equal weights, which are merged before OpenVINO reads them."""


def case_of(head: str, nodes: str, weights: dict[str, Any]) -> Case:
    return Case("g", parse(f"{head} {{ {nodes} }}", weights), {})


def given(head: str) -> dict[str, Any]:
    sizes = (2, 4, 5, 5) if head == IMAGES else (2, 5)
    turns = {"n": np.array(2), "go": np.array(True)} if head == LOOPED else {}
    return {"x": RNG.standard_normal(sizes, np.float32), **turns}


@pytest.mark.parametrize("name", [*SHARED, "copies"])
def test_each_layer_computes_with_the_weights_as_it_reads_them(plugin: Plugin, name: str) -> None:
    copies = {"m": SQUARE, "c": SQUARE.copy()}
    case = case_of(*SHARED[name]) if name in SHARED else case_of(HEAD, COPIES, copies)
    inputs = given(SHARED[name][0] if name in SHARED else HEAD)
    request = InferRequest(plugin.load_network(Load(case.network)))
    found, expected = request.infer(inputs), case.expected(inputs)
    for output, value in expected.items():
        assert found[output] == pytest.approx(value, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("name", SHARED)
def test_openvino_alone_gives_one_layer_the_packed_weights_of_another(name: str) -> None:
    case = case_of(*SHARED[name])
    inputs = given(SHARED[name][0])
    found, expected = alone(case.model)(inputs), case.expected(inputs)
    assert any(
        found[output] != pytest.approx(value, rel=1e-3, abs=1e-3)
        for output, value in expected.items()
    )


@pytest.mark.parametrize(
    ("nodes", "rows", "constants"),
    [
        ("y = Gemm(x, m) z = Gemm<transB = 1>(x, m)", 5, 2),
        ("y = Gemm(x, m) z = Gemm<transB = 1>(y, m)", 5, 2),
        ("y = Gemm(x, m) z = Gemm<transB = 1>(y, m)", 7, 1),
        ("a = Neg(x) y = Gemm(a, m) z = Gemm(x, m)", 5, 1),
        ("t = Transpose(m) z = MatMul(x, t) a = Neg(x) y = MatMul(a, t)", 5, 1),
    ],
)
def test_weights_are_copied_only_if_they_could_be_mistaken(
    nodes: str, rows: int, constants: int
) -> None:
    head = HEAD.replace("float[B,5] y", "float[B,K] y")
    weights = RNG.standard_normal((5, rows), np.float32)
    model = parse(f"{head} {{ {nodes} }}", {"m": weights})
    read = openvino.Core().read_model(model.SerializeToString())
    for _ in range(2):
        separate_weights(read)
        assert sum(_is_weights(each, weights.shape) for each in read.get_ops()) == constants


def _is_weights(operation: openvino.Node, sizes: tuple[int, ...]) -> bool:
    return operation.get_type_name() == "Constant" and tuple(operation.shape) == sizes
