"""Layers and values that onnx's evaluator gets wrong are refused with a reason."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from headrace.runtime.network.reference import refusals
from headrace.runtime.network.reference.evaluator import CorrectedEvaluator

LAYERS: dict[str, list[tuple[str, int, str]]] = {
    "Attention": [
        ("a softcap", 24, "y, , , p = Attention<softcap = 2.0>(x, x, x)"),
    ],
    "GRU": [
        (
            "activations",
            14,
            'y = GRU<hidden_size = 2, activations = ["HardSigmoid","Relu"]>(x, x, x)',
        ),
        ("clip", 14, "y = GRU<hidden_size = 2, clip = 0.5>(x, x, x)"),
    ],
    "LSTM": [
        ("activations", 14, 'y = LSTM<activations = ["Sigmoid","Tanh","Relu"]>(x, x, x)'),
        ("input_forget", 14, "y = LSTM<hidden_size = 2, input_forget = 1>(x, x, x)"),
    ],
    "LinearClassifier": [
        ("no intercepts", 17, "y, z = ai.onnx.ml.LinearClassifier<coefficients = [1.0]>(x)")
    ],
    "LinearRegressor": [
        ("no intercepts", 17, "y = ai.onnx.ml.LinearRegressor<coefficients = [1.0]>(x)")
    ],
    "NonMaxSuppression": [("no limit", 17, "y = NonMaxSuppression(x, x, , x)")],
    "Normalizer": [("the norm MAX", 17, "y = ai.onnx.ml.Normalizer(x)")],
    "OneHotEncoder": [
        ("the same category", 17, "y = ai.onnx.ml.OneHotEncoder<cats_int64s = [1, 2, 2]>(x)")
    ],
    "Optional": [("no value", 17, "y = Optional()")],
    "RNN": [
        ("activation_alpha", 14, "y = RNN<hidden_size = 2, activation_alpha = [0.5]>(x, x, x)"),
    ],
    "Resize": [
        ("scales alone", 10, "y = Resize(x, x)"),
        (
            "pytorch_half_pixel",
            13,
            'y = Resize<mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel">'
            "(x, , x)",
        ),
    ],
    "SVMClassifier": [("scores", 17, "y, z = ai.onnx.ml.SVMClassifier<coefficients = [1.0]>(x)")],
    "TreeEnsemble": [
        ("a post_transform", 21, "y = ai.onnx.ml.TreeEnsemble<post_transform = 1>(x)")
    ],
    "Upsample": [
        ("scales as an attribute", 7, "y = Upsample<scales = [2.0, 2.0]>(x)"),
        ("another mode", 9, 'y = Upsample<mode = "linear">(x, x)'),
    ],
}


@pytest.mark.parametrize(
    ("operator", "reason", "opset", "call"),
    [(operator, *row) for operator, rows in LAYERS.items() for row in rows],
)
def test_a_layer_that_would_be_wrong_is_refused_before_a_run(
    operator: str, reason: str, opset: int, call: str
) -> None:
    outputs = ", ".join(f"float {name}" for name in "yzp" if f"{name}" in call.partition("=")[0])
    with pytest.raises(NotImplementedError, match=f"{operator} with {reason}"):
        CorrectedEvaluator(parsed(opset, f"g (float[N] x) => ({outputs}) {{ {call} }}"))


def test_every_operator_with_a_rule_for_layers_is_tried_here() -> None:
    assert {*LAYERS} == {*refusals.LAYERS}


def parsed(opset: int, text: str) -> onnx.ModelProto:
    own = 5 if opset > 20 else 3
    header = f'<ir_version: 10, opset_import: ["": {opset}, "ai.onnx.ml": {own}]>'
    return parse_model(header + text)


def floats(*shape: int) -> Any:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def whole(*numbers: int) -> Any:
    return np.array(numbers)


RECURRENT = "y = {}<hidden_size = 1>(a, b, c, , d)"
LENGTHS = ("sequences", floats(3, 1, 1), floats(1, 1, 1), floats(1, 1, 1), np.array([2], np.int32))

VALUES: dict[str, list[tuple[str, str, list[Any]]]] = {
    "Attention": [
        (
            "a mask for a part",
            "y = Attention(a, b, b, c)",
            [floats(1, 1, 2, 2), floats(1, 1, 3, 2), np.zeros((2, 1), np.float32)],
        )
    ],
    "BatchNormalization": [
        (
            "statistics",
            "y, p, q = BatchNormalization<training_mode = 1>(a, b, b, b, b)",
            [np.ones((2, 1), np.float16), np.ones(1, np.float32)],
        )
    ],
    "ConvTranspose": [
        (
            "an output_shape",
            f"y = ConvTranspose<output_shape = [3, 4]{pads}>(a, b)",
            [floats(1, 1, 3, 4), floats(1, 1, 2, 3)],
        )
        for pads in ("", ", pads = [1, 1, 1, 1]")
    ],
    "CumProd": [("an axis", "y = CumProd(a, b)", [floats(2, 2), np.array(-(2**31), np.int32)])],
    "CumSum": [
        ("an axis", "y = CumSum(a, b)", [floats(2, 2), np.array(axis, np.int32)])
        for axis in (-(2**31), -3, 2)
    ],
    "GRU": [(LENGTHS[0], RECURRENT.format("GRU"), [*LENGTHS[1:]])],
    "GridSample": [("integers", "y = GridSample(a, b)", [np.ones((1, 1, 1, 2), np.int32)] * 2)],
    "LSTM": [(LENGTHS[0], RECURRENT.format("LSTM"), [*LENGTHS[1:]])],
    "LayerNormalization": [
        (
            "statistics of narrow floats",
            "y, p = LayerNormalization(a, b)",
            [np.ones((1, 5), ml_dtypes.bfloat16), np.ones(5, ml_dtypes.bfloat16)],
        )
    ],
    "LinearClassifier": [
        (
            "features",
            "y, p = ai.onnx.ml.LinearClassifier<coefficients = [1.0], intercepts = [1.0]>(a)",
            [floats(1)],
        )
    ],
    "LinearRegressor": [
        (
            "features",
            "y = ai.onnx.ml.LinearRegressor<coefficients = [1.0], intercepts = [1.0]>(a)",
            [floats(1)],
        )
    ],
    "LpNormalization": [
        ("another p", f"y = LpNormalization<p = {p}>(a)", [floats(2)]) for p in (-1, 0, 3)
    ],
    "MatMulInteger": [
        (
            "a zero point",
            "y = MatMulInteger(a, a, b)",
            [np.ones((2, 2), np.uint8), np.ones(2, np.uint8)],
        )
    ],
    "Mean": [("inputs that are larger", "y = Mean(a, b)", [floats(1, 2), floats(2, 1)])],
    "NegativeLogLikelihoodLoss": [
        ("a target", "y = NegativeLogLikelihoodLoss(a, b, c)", [floats(2, 3), whole(1), floats(3)]),
        (
            "weights",
            "y = NegativeLogLikelihoodLoss(a, b, c)",
            [floats(2, 3), whole(1, 1), floats(4)],
        ),
    ],
    "Normalizer": [("features", 'y = ai.onnx.ml.Normalizer<norm = "L1">(a)', [floats(2)])],
    "OneHot": [
        ("fractions", "y = OneHot(a, b, c)", [np.array([0.5]), whole(2), floats(2)]),
        ("fractions", "y = OneHot(a, b, c)", [whole(1), np.array([1.9]), floats(2)]),
    ],
    "OneHotEncoder": [
        ("fractions", "y = ai.onnx.ml.OneHotEncoder<cats_int64s = [1]>(a)", [floats(2)])
    ],
    "QLinearMatMul": [
        (
            "a scale",
            "y = QLinearMatMul(a, b, c, a, d, e, d, e)",
            [np.ones((2, 2), np.uint8), floats(2), np.ones(2, np.uint8), floats(), np.uint8(0)],
        )
    ],
    "RNN": [(LENGTHS[0], RECURRENT.format("RNN"), [*LENGTHS[1:]])],
    "ReduceLogSumExp": [
        ("a single number", "y = ReduceLogSumExp(a)", [np.array(1, np.float32)]),
        ("infinities", "y = ReduceLogSumExp(a)", [np.array([1, np.inf], np.float32)]),
    ],
    "Scaler": [
        ("integers", "y = ai.onnx.ml.Scaler<offset = [0.5], scale = [0.5]>(a)", [whole(1)]),
        (
            "features of more axes",
            "y = ai.onnx.ml.Scaler<offset = [0.5, 1.0], scale = [0.5, 1.0]>(a)",
            [floats(1, 1, 2)],
        ),
    ],
    "SequenceInsert": [
        ("the end", "y = SequenceInsert(a, b, c)", [[floats(1)], floats(1), whole(1)])
    ],
    "SoftmaxCrossEntropyLoss": [
        (
            "a target",
            "y = SoftmaxCrossEntropyLoss(a, b)",
            [floats(2, 3), np.ones((2, 1), np.int64)],
        ),
        ("weights", "y = SoftmaxCrossEntropyLoss(a, b, c)", [floats(2, 3), whole(1, 1), floats(4)]),
    ],
    "Softsign": [("a single number", "y = Softsign(a)", [np.array(1, np.float32)])],
    "SplitToSequence": [
        ("lengths", "y = SplitToSequence(a, b)", [floats(3), split])
        for split in (whole(2), whole(4, -1), np.array(0))
    ],
    "Unique": [
        ("unsorted parts", "y, p = Unique<sorted = 0>(a)", [floats(2, 2)]),
        ("unsorted parts", "y, p = Unique<sorted = 0, axis = -1>(a)", [floats(2, 2)]),
        ("unsorted parts", "y = Unique<sorted = 0>(a)", [floats(2)]),
        ("more than", "y = Unique(a)", [np.array(["a"] * 16_385, object)]),
    ],
}


@pytest.mark.parametrize(
    ("operator", "reason", "call", "values"),
    [(operator, *row) for operator, rows in VALUES.items() for row in rows],
)
def test_values_that_would_be_wrong_are_refused(
    operator: str, reason: str, call: str, values: list[Any]
) -> None:
    names = "abcde"[: len(values)]
    inputs = ", ".join(
        f"{'seq(float)' if isinstance(value, list) else 'float'} {name}"
        for name, value in zip(names, values, strict=True)
    )
    outputs = [name for name in "ypq" if name in call.partition("=")[0]]
    ports = ", ".join(f"float {name}" for name in outputs)
    opset = 23 if operator == "Attention" else 26
    evaluator = CorrectedEvaluator(parsed(opset, f"g ({inputs}) => ({ports}) {{ {call} }}"))
    error = ValueError if operator in refusals.INVALID else NotImplementedError
    with pytest.raises(error, match=f"{operator} of {reason}"):
        evaluator.run(None, dict(zip(names, values, strict=True)))


def test_every_operator_with_a_rule_for_values_is_tried_here() -> None:
    assert {*VALUES} == {*refusals.VALUES, *refusals.INVALID}


def test_functions_with_an_overload_are_refused() -> None:
    text = """g (float[2] x) => (float[2] y) { y = own.Scale:twice(x) }
    <domain: "own", overload: "twice", opset_import: ["": 20]> Scale (v) => (w) { w = Add(v, v) }
    """
    model = parse_model(f'<ir_version: 10, opset_import: ["": 20, "own": 1]>{text}')
    with pytest.raises(NotImplementedError, match="overload"):
        CorrectedEvaluator(model)


FUNCTION = """g (float[2,1,1,2] x) => (float y) {{ y = own.f<a = {0}>(x) }}
    <domain: "own", opset_import: ["": 20, "ai.onnx.ml": 3]> f <a> (v) => (w) {{ w = {1}(v) }}"""


def test_an_attribute_that_a_function_hands_on_is_judged_in_a_run() -> None:
    call = "ai.onnx.ml.Normalizer<norm: string = @a>"
    header = '<ir_version: 10, opset_import: ["": 20, "own": 1, "ai.onnx.ml": 3]>'
    evaluator = CorrectedEvaluator(parse_model(header + FUNCTION.format('"MAX"', call)))
    with pytest.raises(NotImplementedError, match="Normalizer with the norm MAX"):
        evaluator.run(None, {"x": floats(2, 2)})


def test_an_operator_of_one_number_takes_no_attribute_of_a_function() -> None:
    call = "LeakyRelu<alpha: float = @a>"
    header = '<ir_version: 10, opset_import: ["": 20, "own": 1, "ai.onnx.ml": 3]>'
    with pytest.raises(NotImplementedError, match="LeakyRelu with an attribute of a function"):
        CorrectedEvaluator(parse_model(header + FUNCTION.format("0.5", call)))
