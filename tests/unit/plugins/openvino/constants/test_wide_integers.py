"""Constants beyond int32 on OPENVINO: where OpenVINO is wrong the layer is refused, elsewhere not.

Each network is computed by OpenVINO itself, so that a rule without which nothing is wrong any more
is found out.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.plugins.openvino.constants import wide_integers
from headrace.plugins.openvino.graph.repairs import repair
from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.support import known_limits
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.network.values import Array
from headrace.testing.case import Case, parse

INT64 = (-(2**63), 2**63 - 1)
LEAST, GREATEST = (f"Constant<value = int64 {{{each}}}>()" for each in INT64)
BELOW, ABOVE = (f"Constant<value = int64 {{{each}}}>()" for each in (-(5 * 10**9), 5 * 10**9))
SLICE = "axis = Constant<value = int64[1] {0}>() y = Slice(x, start, end, axis, step)"

WRONG = {
    "an_operand": f"(int64[2] x) => (int64[2] y) {{ c = {ABOVE} y = Add(x, c) }}",
    "of_32_bits_without_a_sign": "(uint32[2] x) => (uint32[2] y)"
    " { c = Constant<value = uint32 {4000000000}>() y = Add(x, c) }",
    "returned": f"(int64[2] x) => (int64[2] z, int64 y) {{ z = Neg(x) y = {ABOVE} }}",
    "constant_of_shape": "(int64[2] x) => (int64[2] y) { n = Constant<value = int64[1] {2}>()"
    " c = ConstantOfShape<value = int64[1] {5000000000}>(n) y = Add(x, c) }",
    "slice_data": "(int64[2] x) => (int64[2] y) { c = Constant<value = int64[2] {5000000000, 0}>()"
    " a = Constant<value = int64[1] {0}>() b = Constant<value = int64[1] {1}>()"
    " s = Slice(c, a, b) y = Add(s, x) }",
    "max_high": f"(int64[2] x) => (int64[2] y) {{ c = {ABOVE} y = Max(x, c) }}",
    "min_low": f"(int64[2] x) => (int64[2] y) {{ c = {BELOW} y = Min(x, c) }}",
    "clip_min_high": f"(int64[2] x) => (int64[2] y)"
    f" {{ a = {ABOVE} b = {GREATEST} y = Clip(x, a, b) }}",
    "clip_max_low": f"(int64[2] x) => (int64[2] y) {{ a = {LEAST} b = {BELOW} y = Clip(x, a, b) }}",
    "loop_carried": "(int64[2] x) => (int64[2] y) { n = Constant<value = int64 {2}>()"
    " t = Constant<value = bool {1}>() c = Constant<value = int64[2] {5000000000, 1}>()"
    " y = Loop(n, t, c) <body = turn (int64 i, bool going, int64[2] a) => (bool on, int64[2] b)"
    " { on = Identity(going) b = Add(a, x) }> }",
}
RIGHT = {
    "cast_to_float": f"(float[2] x) => (float[2] y) {{ c = {ABOVE} f = Cast<to = 1>(c)"
    " y = Add(x, f) }",
    "slice_ends": "(int64[2] x) => (int64[2] y)"
    " { start = Constant<value = int64[1] {-9223372036854775807}>()"
    " end = Constant<value = int64[1] {9223372036854775807}>()"
    f" step = Constant<value = int64[1] {{1}}>() {SLICE} }}",
    "slice_step": "(int64[2] x) => (int64[1] y)"
    " { start = Constant<value = int64[1] {0}>() end = Constant<value = int64[1] {2}>()"
    f" step = Constant<value = int64[1] {{5000000000}}>() {SLICE} }}",
    "slice_step_down": "(int64[2] x) => (int64[1] y)"
    " { start = Constant<value = int64[1] {1}>() end = Constant<value = int64[1] {-3}>()"
    f" step = Constant<value = int64[1] {{-5000000000}}>() {SLICE} }}",
    "max_low": f"(int64[2] x) => (int64[2] y) {{ c = {BELOW} y = Max(x, c) }}",
    "min_high": f"(int64[2] x) => (int64[2] y) {{ c = {ABOVE} y = Min(x, c) }}",
    "clip_low": f"(int64[2] x) => (int64[2] y) {{ a = {LEAST} y = Clip(x, a) }}",
    "clip_high": f"(int64[2] x) => (int64[2] y) {{ b = {GREATEST} y = Clip(x, , b) }}",
    "loop_trips": f"(int64[2] x) => (int64[2] y) {{ n = {GREATEST}"
    " t = Constant<value = bool {1}>() y = Loop(n, t, x)"
    " <body = turn (int64 i, bool going, int64[2] a) => (bool on, int64[2] b)"
    " { k = Constant<value = int64 {3}>() on = Less(i, k) b = Add(a, a) }> }",
}


def case_of(text: str) -> Case:
    dtype = {"int64": np.int64, "uint32": np.uint32, "float": np.float32}[text[1 : text.index("[")]]
    return Case("f", parse(f"f {text}"), {"x": np.array([1, 2], dtype)})


def is_refused(case: Case) -> bool:
    model = case.network.model
    infer_types(model)
    return wide_integers.REASON in known_limits(model).values()


def is_right(case: Case) -> bool:
    core = openvino.Core()
    model = core.read_model(case.model.SerializeToString())
    repair(model)
    compiled = core.compile_model(model, "CPU")
    found: dict[str, Array] = {
        port.any_name: value for port, value in compiled(case.inputs).items()
    }
    return all(np.array_equal(found[name], value) for name, value in case.expected().items())


@pytest.mark.parametrize("name", WRONG)
def test_openvino_alone_is_wrong_about_it(name: str) -> None:
    assert not is_right(case_of(WRONG[name]))


@pytest.mark.parametrize("name", WRONG)
def test_a_layer_that_would_be_wrong_is_refused(name: str) -> None:
    assert is_refused(case_of(WRONG[name]))


@pytest.mark.parametrize("name", RIGHT)
def test_a_layer_that_is_right_all_the_same_is_not_refused(name: str) -> None:
    case = case_of(RIGHT[name])
    assert is_right(case)
    assert not is_refused(case)
