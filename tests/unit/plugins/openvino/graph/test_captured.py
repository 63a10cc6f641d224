"""Iterations of a loop leave the tensors that its body takes from outside as they are.

OpenVINO alone does not, which is tested too, so that a rule without which nothing is wrong any more
is found out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.plugins.openvino.graph.loops import protect_captured
from headrace.plugins.openvino.library import openvino
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest
from tests.support.openvino_alone import alone

RNG = np.random.default_rng(3)
LOOP = """g (float[4,8] x, float[4,8] u, int64 n, bool go) => (float[4,8] y) {
    y = Loop(n, go, u) <body = b (int64 i, bool c, float[4,8] v) => (bool d, float[4,8] s) {
        d = Identity(c) NODES s = Add(w, v) }> }"""
INDICES = np.array([[1], [3]], np.int64)
ELEMENTS = np.array([[0, 1], [2, 3], [1, 0], [3, 2]], np.int64)
ROWS = RNG.standard_normal((2, 8), np.float32)
OVERWRITING: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("w = Softmax(x)", {}),
    "norm": ("w = LayerNormalization(x, g)", {"g": ROWS[0]}),
    "variance": ("w = MeanVarianceNormalization<axes = [1]>(x)", {}),
    "lengths": ("w = LpNormalization<axis = 1>(x)", {}),
    "scatter": ("w = ScatterND(x, at, r)", {"at": INDICES, "r": ROWS}),
    "elements": (
        "w = ScatterElements<axis = 1>(x, e, r)",
        {"e": ELEMENTS, "r": ROWS[:, :4].reshape(4, 2)},
    ),
    "view": (
        "a = Unsqueeze(x, z) b = Squeeze(a, z) w = ScatterND(b, at, r)",
        {"z": np.array([0]), "at": INDICES, "r": ROWS},
    ),
    "all": ("a = Gather(x, k) w = Softmax(a)", {"k": np.arange(4)}),
    "plus_zero": ("a = Add(x, z) w = Softmax(a)", {"z": np.zeros(1, np.float32)}),
    "joined_alone": ("a = Concat<axis = 0>(x) w = Softmax(a)", {}),
}
READING = {
    "product": "w = MatMul(v, m) ",
    "transposed": "t = Transpose(m) w = MatMul(v, t)",
    "table": "k = Cast<to = 7>(v) l = Gather(m, k) w = ReduceSum<keepdims = 0>(l, axes)",
}


def case_of(nodes: str, weights: dict[str, Any]) -> Case:
    return Case("g", parse(LOOP.replace("NODES", nodes), weights), {})


def given(count: int) -> dict[str, Any]:
    x, u = RNG.standard_normal((2, 4, 8), np.float32)
    return {"x": x, "u": u, "n": np.array(count), "go": np.array(True)}


@pytest.mark.parametrize("name", OVERWRITING)
def test_each_iteration_reads_what_the_first_one_did(plugin: Plugin, name: str) -> None:
    case = case_of(*OVERWRITING[name])
    request = InferRequest(plugin.load_network(Load(case.network)))
    for count in (1, 3, 2):
        inputs = given(count)
        expected = case.expected(inputs)["y"]
        assert request.infer(inputs)["y"] == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", OVERWRITING)
def test_openvino_alone_overwrites_what_the_next_iteration_reads(name: str) -> None:
    case = case_of(*OVERWRITING[name])
    inputs = given(3)
    expected = case.expected(inputs)["y"]
    assert alone(case.model)(inputs)[0] != pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", READING)
def test_weights_are_not_copied_in_each_iteration(name: str) -> None:
    text = LOOP.replace("NODES", READING[name]).replace("(float[4,8] x", "(float[8,8] m")
    weights = {"axes": np.array([1])} if "axes" in text else {}
    model = parse(text, weights)
    read = openvino.Core().read_model(model.SerializeToString())
    before = kinds(read)
    protect_captured(read)
    assert kinds(read) == before


def kinds(model: openvino.Model) -> list[str]:
    (loop,) = (each for each in model.get_ops() if each.get_type_name() == "Loop")
    return sorted(each.get_type_name() for each in loop.get_function().get_ops())
