"""Requests of changing sizes never read or write the memory of earlier ones.

OpenVINO alone does, which is tested too, so that a rule without which nothing is wrong any more is
found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.plugins.openvino.compiler import Compiler
from headrace.plugins.openvino.library import openvino
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest
from tests.support.openvino_alone import alone, kinds

WINDOW = np.linspace(-1, 1, 4 * 3 * 3 * 3, dtype=np.float32).reshape(4, 3, 3, 3)
SQUARE = np.linspace(-1, 1, 4 * 4, dtype=np.float32).reshape(4, 4, 1, 1)
SUM = """g (float[B,3,H,W] x, float[C,4,I,J] r) => (float[D,4,K,L] y) {
    c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Add(c, r)
}"""
SUMS = {
    "sum": SUM,
    "behind_a_layer": SUM.replace("y = Add(c, r)", "d = Relu(c) y = Add(r, d)"),
    "computed_twice": SUM.replace("y = Add(c, r)", "d = Add(c, r) e = Add(c, r) y = Max(d, e)"),
    "difference": SUM.replace("Add(c, r)", "Sub(c, q)").replace("c =", "q = Relu(r) c ="),
    "negated": SUM.replace("y = Add(c, r)", "n = Neg(c) q = Relu(r) y = Sub(q, n)"),
    "split": SUM.replace(
        "y = Add(c, r)",
        "q = Relu(r) a, b = Split<axis = 1, num_outputs = 2>(c)"
        " d = Concat<axis = 1>(a, b) y = Add(d, q)",
    ),
    "of_two": SUM.replace("y = Add(c, r)", "d = Conv(r, v) y = Add(c, d)"),
}
BLOCK = """g (float[N,4,SIZES] x) => (float[M,4,SIZES] y) {
    a = Conv(x, v) b = Relu(a) c = Conv(b, v) y = Add(c, x)
}"""
ROTARY = """g (float[B,2,S,8] x, float[B,S,4] c, float[B,S,4] s) => (float[B,2,S,8] y) {
    one = Constant<value = int64[1] {1}>() zero = Constant<value = int64[1] {0}>()
    half = Constant<value = int64[1] {4}>() end = Constant<value = int64[1] {8}>()
    last = Constant<value = int64[1] {3}>()
    cc = Concat<axis = -1>(c, c) ss = Concat<axis = -1>(s, s)
    cos = Unsqueeze(cc, one) sin = Unsqueeze(ss, one)
    a = Slice(x, zero, half, last) b = Slice(x, half, end, last) n = Neg(b)
    turned = Concat<axis = -1>(n, a) p = Mul(x, cos) q = Mul(turned, sin) y = Add(p, q)
}"""


def images(data: Sequence[int], added: Sequence[int], value: float) -> dict[str, Any]:
    return {"x": np.ones(data, np.float32), "r": np.full(added, value, np.float32)}


def heads(batch: int, steps: int) -> dict[str, Any]:
    angles = np.ones((batch, steps, 4), np.float32)
    return {"x": np.ones((batch, 2, steps, 8), np.float32), "c": angles, "s": angles.copy()}


STEPS = [(2, 2), (0, 2), (4, 4), (2, 2), (4, 4)]
FEEDS = [
    images((2, 3, 2, 3), (2, 4, 1, 3), 777),
    images((0, 3, 2, 3), (1, 4, 1, 3), 1),
    images((1, 3, 2, 3), (0, 4, 2, 3), 1),
    images((2, 3, 5, 1), (1, 4, 5, 1), 2),
]


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_of_nothing_is_not_that_of_an_earlier_request(plugin: Plugin, name: str) -> None:
    weights = {"w": WINDOW, "v": SQUARE} if "v)" in SUMS[name] else {"w": WINDOW}
    case = Case("g", parse(SUMS[name], weights), {})
    request = InferRequest(plugin.load_network(Load(case.network)))
    for feed in FEEDS:
        right, found = case.expected(feed)["y"], np.asarray(request.infer(feed)["y"])
        assert found.shape == right.shape
        assert found == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize(
    ("ports", "feeds"),
    [
        ("float[1,3,5,5] x, float[C,4,5,5] r", [((1, 3, 5, 5), (n, 4, 5, 5)) for n in (2, 0, 3)]),
        ("float[B,3,5,5] x, float[1,4,5,5] r", [((n, 3, 5, 5), (1, 4, 5, 5)) for n in (2, 0, 3)]),
    ],
)
def test_a_sum_with_a_tensor_of_known_shape_is_of_this_request(
    plugin: Plugin, ports: str, feeds: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    text = f"g ({ports}) => (float[D,4,K,L] y) {SUM[SUM.index('{') :]}"
    case = Case(
        "g",
        parse(
            text.replace("Add(c, r)", "Add(c, q)").replace("c =", "q = Relu(r) c ="), {"w": WINDOW}
        ),
        {},
    )
    request = InferRequest(plugin.load_network(Load(case.network)))
    for data, added in feeds:
        feed = images(data, added, 7)
        right, found = case.expected(feed)["y"], np.asarray(request.infer(feed)["y"])
        assert found.shape == right.shape
        assert found == pytest.approx(right, rel=1e-4)


def test_openvino_alone_returns_the_sum_of_an_earlier_request() -> None:
    request = alone(parse(SUM, {"w": WINDOW})).create_infer_request()
    request.infer(FEEDS[0])
    assert request.infer(FEEDS[1])[0].shape != (0, 4, 2, 3)


@pytest.mark.parametrize(("sizes", "more"), [("8,8", 0), ("H,W", 1)])
def test_a_sum_is_fused_if_its_tensors_always_have_the_same_sizes(
    compiler: Compiler, sizes: str, more: int
) -> None:
    case = Case("g", parse(BLOCK.replace("SIZES", sizes), {"v": SQUARE}), {})
    compiled = compiler.compile(case.network, "CPU", {}).model
    assert kinds(compiled).count("Eltwise") == kinds(alone(case.model)).count("Eltwise") + more


def test_a_rotary_embedding_writes_into_no_input(plugin: Plugin) -> None:
    request = InferRequest(plugin.load_network(Load(Case("g", parse(ROTARY), {}).network)))
    feeds = [heads(*sizes) for sizes in STEPS]
    for feed in feeds:
        request.infer(feed)
    assert all((value == 1).all() for feed in feeds for value in feed.values())


def test_openvino_alone_writes_a_rotary_embedding_into_its_input() -> None:
    request = alone(parse(ROTARY)).create_infer_request()
    feeds = [heads(*sizes) for sizes in STEPS]
    for feed in feeds:
        for name, value in feed.items():
            request.set_tensor(name, openvino.Tensor(value, shared_memory=True))
        request.infer()
    assert not all((value == 1).all() for feed in feeds for value in feed.values())
