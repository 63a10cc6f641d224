"""Whether rows stay apart, as far as a graph tells."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.plugins.batch.analysis.analysis import Analysis, analyse
from headrace.runtime.network.network import Network
from headrace.testing import networks
from headrace.testing.case import Case, parse


def of(text: str, inputs: str = "float[N,4] x", outputs: str = "float[N,4] y") -> Analysis:
    """Analyses a network of these layers; `w` is float[4,4], `v` float[2,4]."""
    weights = {"w": np.eye(4, dtype=np.float32), "v": np.ones((2, 4), np.float32)}
    model = parse(f"m ({inputs}) => ({outputs}) {{ {text} }}", weights)
    return analyse(Network.from_bytes(model.SerializeToString()).model)


@pytest.mark.parametrize(
    "case",
    [networks.mlp(), networks.image(), networks.transformer(), networks.string_join()],
    ids=str,
)
def test_usual_networks_keep_rows_apart(case: Case) -> None:
    found = analyse(case.network.model)
    assert (found.mixes, found.doubts) == ("", {})
    assert set(found.outputs.values()) == {0}


APART = {
    "elementwise with a constant": "c = Constant<value_floats = [1.0,2.0,3.0,4.0]>() y = Mul(x, c)",
    "matrix": "y = MatMul(x, w)",
    "gemm": "y = Gemm(x, w)",
    "norm": "y = Softmax<axis = -1>(x)",
    "transpose there and back": "t = Transpose<perm = [1,0]>(x) s = Relu(t) y = Transpose(s)",
    "merge and part": """
        three = Constant<value = int64[3] {-1, 2, 2}>() four = Constant<value = int64[2] {-1, 4}>()
        a = Reshape(x, three) b = Transpose<perm = [0,2,1]>(a) y = Reshape(b, four)""",
    "rows merged into tokens": """
        flat = Constant<value = int64[2] {-1, 2}>() back = Constant<value = int64[2] {-1, 4}>()
        a = Reshape(x, flat) b = Softmax<axis = 1>(a) y = Reshape(b, back)""",
    "reduce the features": """
        axes = Constant<value = int64[1] {1}>() m = ReduceMean(x, axes) y = Sub(x, m)""",
    "shape of the batch": """
        s = Shape(x) t = Relu(x) y = Reshape(t, s)""",
    "divided by a size of the features": """
        s = Shape<start = 1>(x) f = Cast<to = 1>(s) r = Sqrt(f) y = Div(x, r)""",
    "sizes put together": """
        s = Shape(x) first = Constant<value = int64[1] {0}>() n = Gather(s, first)
        four = Constant<value = int64[1] {4}>() both = Concat<axis = 0>(n, four)
        t = Relu(x) y = Reshape(t, both)""",
    "a constant repeated for each row": """
        s = Shape(x) one = Constant<value = float[1,1] {2.0}>() e = Expand(one, s) y = Add(x, e)""",
    "zeros for each row": "s = Shape(x) z = ConstantOfShape(s) y = Add(x, z)",
    "split": "a, b = Split<axis = 1, num_outputs = 2>(x) y = Concat<axis = 1>(b, a)",
    "squeeze": """
        one = Constant<value = int64[1] {1}>() a = Unsqueeze(x, one) y = Squeeze(a, one)""",
    "slice": """
        from = Constant<value = int64[1] {0}>() to = Constant<value = int64[1] {4}>()
        over = Constant<value = int64[1] {1}>() y = Slice(x, from, to, over)""",
}


@pytest.mark.parametrize("name", APART)
def test_rows_stay_apart(name: str) -> None:
    found = of(APART[name])
    assert (found.mixes, found.doubts, found.outputs) == ("", {}, {"y": 0})


MIXED = {
    "softmax over the batch": ("y = Softmax<axis = 0>(x)", "normalizes over the batch"),
    "reduction": (
        "axes = Constant<value = int64[1] {0}>() m = ReduceMean(x, axes) y = Sub(x, m)",
        "reduces over the batch",
    ),
    "reduction of everything": ("m = ReduceMax(x) y = Sub(x, m)", "reduces over the batch"),
    "running sum": (
        "zero = Constant<value = int64 {0}>() y = CumSum(x, zero)",
        "sums over the batch",
    ),
    "rows times rows": ("t = Transpose(x) a = MatMul(x, t) y = MatMul(a, x)", "rows of the batch"),
    "sum over rows": ("t = Transpose(x) y = MatMul(t, x)", "over the batch"),
    "one row": (
        "zero = Constant<value = int64 {0}>() r = Gather(x, zero) y = Add(x, r)",
        "single rows",
    ),
    "quantized": (
        "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)",
        "scale from the whole batch",
    ),
    "batch joined with a constant": ("y = Concat<axis = 0>(x, v)", "joins the batch"),
    "training": (
        "one = Constant<value_floats = [1.0,1.0,1.0,1.0]>() "
        "y, m, v1 = BatchNormalization<training_mode = 1>(x, one, one, one, one)",
        "normalizes over the batch",
    ),
    "constant of several rows": ("y = Add(x, v)", "constant of several rows"),
    "the batch nowhere": (
        "one = Constant<value = int64[2] {4, -1}>() y = Reshape(x, one)",
        "no batch dimension",
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_rows_meet_and_the_layer_is_named(name: str) -> None:
    text, reason = MIXED[name]
    found = of(text)
    assert found.mixes.startswith("layer '")
    assert reason in found.mixes


def test_a_sequence_of_time_steps_is_no_batch() -> None:
    found = analyse(networks.recurrent().network.model)
    assert found.mixes == "layer 'lstm' (LSTM): it treats the batch as time"


def test_an_output_with_the_batch_on_another_axis_is_refused() -> None:
    assert "axis 1 and not first" in of("y = Transpose(x)", outputs="float[4,N] y").mixes


def test_outputs_that_do_not_depend_on_the_batch_are_told() -> None:
    found = of("y = Relu(x) z = Neg(w)", outputs="float[N,4] y, float[4,4] z")
    assert found.outputs == {"y": 0, "z": None}


def test_a_network_none_of_whose_outputs_depend_on_the_batch_is_refused() -> None:
    assert of("y = Neg(w)", outputs="float[4,4] y").mixes == "no output depends on the batch"


@pytest.mark.parametrize(
    "text",
    [
        "[odd] y = headrace.test.Strange(x)",
        "[odd] s = Size(x) f = Cast<to = 1>(s) y = Div(x, f)",
        "[odd] s = Shape<end = 1>(x) f = Cast<to = 1>(s) y = Mul(x, f)",
    ],
    ids=["unknown operator", "number of elements", "number of rows"],
)
def test_what_no_rule_knows_is_a_doubt(text: str) -> None:
    found = of(text)
    assert found.mixes == ""
    assert len(found.doubts) == 1
    assert "y" not in found.outputs


def test_what_follows_a_doubt_is_no_further_doubt() -> None:
    assert len(of("a = headrace.test.Strange(x) b = Relu(a) y = Softmax<axis = 0>(b)").doubts) == 1


def test_layers_with_bodies_that_see_the_batch_are_a_doubt() -> None:
    text = """
        c = Constant<value = bool {1}>()
        y = If(c) <then_branch = a () => (float[N,4] t) { t = Neg(x) },
                   else_branch = b () => (float[N,4] e) { e = Abs(x) }>"""
    (doubt,) = of(text).doubts.values()
    assert "bodies" in doubt
