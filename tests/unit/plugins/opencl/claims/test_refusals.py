"""What OPENCL refuses because tinygrad would compute something else, and no more than that."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from headrace.plugins.opencl.claims import refusals
from headrace.testing.case import Case, parse

_STATISTICS = "float[2] s, float[2] b, float[2] m, float[2] v"


def reasons(text: str, opset: int = 21) -> list[str]:
    """Why layers of a network are refused, given its inputs, outputs and nodes."""
    graph = Case("f", parse(f"f {text}"), {}).network.model.graph
    return [why for node in graph if (why := refusals.reason(node, opset)) is not None]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(float[2] x, float[2] y) => (float[2] z) { z = Mod<fmod = 1>(x, y) }", "some Mod in"),
        ("(float[2,2] x) => (int64[2,1] y) { y = ArgMin<axis = 1>(x) }", "some ArgMin in"),
        (
            "(float[1,1,2,2] x, int64[4] s) => (float[1,1,a,b] y)"
            " { y = Resize<antialias = 1>(x, , , s) }",
            "antialias",
        ),
        (
            "(float[1,1,2,2] x, float[8] r, int64[4] s) => (float[1,1,a,b] y) { y ="
            ' Resize<coordinate_transformation_mode = "tf_crop_and_resize">(x, r, , s) }',
            "tf_crop_and_resize",
        ),
        (
            "(float[1,1,2,2] x, float[4] s) => (float[1,1,a,b] y) { y ="
            ' Resize<coordinate_transformation_mode = "align_corners">(x, , s) }',
            "align_corners",
        ),
        (
            "(float[1,1,2,2] x, int64[2] s) => (float[1,1,a,b] y)"
            " { y = Resize<axes = [2, 3]>(x, , , s) }",
            "other axes",
        ),
        ("(float[2,2] x, int64[2] s) => (float[a,b] y) { y = Resize(x, , , s) }", "other axes"),
        (
            "(float[2] x, float r, bool t) => (float[2] y) { y = Dropout(x, r, t) }",
            "trains",
        ),
        (
            "(float[3,n] x, int64[1,2] at) => (float[1] y) { y = GatherND(x, at) }",
            "not checked",
        ),
        (
            "(float[1,1,4] x) => (float[1,1,3] y, int64[1,1,3] i)"
            " { y, i = MaxPool<kernel_shape = [2]>(x) }",
            "with indices",
        ),
        (
            f"(float[5,2] x, {_STATISTICS}) => (float[5,2] y, float[2] n, float[2] w)"
            " { y, n, w = BatchNormalization<training_mode = 1>(x, s, b, m, v) }",
            "trains",
        ),
        (
            f"(float[1,2,2,2] x, {_STATISTICS}) => (float[1,2,2,2] y)"
            " { y = BatchNormalization<spatial = 0>(x, s, b, m, v) }",
            "each pixel",
        ),
    ],
)
def test_what_would_be_wrong_is_refused(text: str, why: str) -> None:
    (found,) = reasons(text)
    assert why in found


def test_what_trains_is_refused() -> None:
    for operator in ("Adagrad", "Adam", "Momentum"):
        why = refusals.reason(ir.node(operator, [], domain="ai.onnx.preview.training"), 1)
        assert why is not None
        assert "assigns" in why


@pytest.mark.parametrize(
    "text",
    [
        "(float[1,1,2,2] x, int64[4] s) => (float[1,1,a,b] y) { y = Resize(x, , , s) }",
        "(float[1,1,4] x) => (float[1,1,3] y) { y = MaxPool<kernel_shape = [2]>(x) }",
        "(float[2] x) => (float[2] y) { y = headrace.test.Mod(x) }",
        "(float[2] x, float r) => (float[2] y) { y = Dropout(x, r) }",
        "(float[3,n] x) => (float[1] y)"
        " { at = Constant<value = int64[1,2] {0, 0}>() y = GatherND(x, at) }",
    ],
)
def test_what_is_right_is_not_refused(text: str) -> None:
    assert not reasons(text)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(
    ("axis", "opset", "taken"), [(1, 11, False), (2, 11, True), (-1, 11, True), (1, 13, True)]
)
def test_before_set_13_a_softmax_is_taken_over_the_last_axis_alone(
    operator: str, axis: int, opset: int, taken: bool
) -> None:
    text = f"(float[3,2,4] x) => (float[3,2,4] y) {{ y = {operator}<axis = {axis}>(x) }}"
    assert (not reasons(text, opset)) is taken
