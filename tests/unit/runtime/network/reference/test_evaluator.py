"""The reference evaluator, corrected: each behaviour is one that onnx's own gets wrong."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnxruntime import InferenceSession

from headrace.plugins.template.executable_network import Evaluator
from headrace.runtime.network.reference.evaluator import CorrectedEvaluator

FLOAT_TYPE = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])


def run(opset: int, text: str, **inputs: Any) -> list[Any]:
    return list(CorrectedEvaluator(parsed(opset, text)).run(None, inputs))


def parsed(opset: int, text: str) -> onnx.ModelProto:
    return parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>{text}')


def loop(element: str, cond: str = "yes") -> str:
    """Collects its state three times, which each time grows by one."""
    return f"""g (int64 trips, float{element} x) => (float{element} last, float[N] all) {{
        yes = Constant<value = bool {{1}}>()
        one = Constant<value = float {{1}}>()
        last, all = Loop(trips, {cond}, x) <body = b
            (int64 i, bool go, float{element} v) => (bool more, float{element} next, float r) {{
                more = Identity(go)
                next = Add(v, one)
                r = Identity(v)
            }}
        >
    }}"""


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_a_loop_stacks_what_it_collects_along_a_new_axis(shape: tuple[int, ...]) -> None:
    element = f"[{','.join(map(str, shape))}]" if shape else ""
    x = np.zeros(shape, np.float32)
    last, collected = run(17, loop(element), trips=np.array(3), x=x)
    assert last.tolist() == np.full(shape, 3).tolist()
    assert collected.tolist() == [np.full(shape, each).tolist() for each in range(3)]


def test_a_loop_without_a_condition_runs() -> None:
    _, collected = run(17, loop("", cond='""'), trips=np.array(2), x=np.float32(5))
    assert collected.tolist() == [5, 6]


@pytest.mark.parametrize("size", ["", "[2]"])
def test_a_loop_that_never_runs_collects_nothing_of_the_declared_shape(size: str) -> None:
    text = loop("").replace("float r)", f"float{size} r)")
    last, collected = run(17, text, trips=np.array(0), x=np.float32(5))
    assert last == 5
    assert (collected.shape, collected.dtype) == ((0, 2) if size else (0,), np.float32)


@pytest.mark.parametrize("size", ["[]", "[N]"])
def test_a_loop_that_never_runs_says_why_it_cannot(size: str) -> None:
    text = loop("").replace("float r)", f"float{size} r)")
    with pytest.raises(ValueError, match="no iteration"):
        run(17, text, trips=np.array(0), x=np.float32(5))


@pytest.mark.parametrize(
    ("op", "expected"), [("Softmax", 0.25), ("LogSoftmax", np.log(0.25)), ("Hardmax", None)]
)
@pytest.mark.parametrize("attribute", ["", "<axis = 1>", "<axis = -2>"])
def test_old_softmaxes_take_all_axes_from_theirs_together(
    op: str, expected: float | None, attribute: str
) -> None:
    text = f"g (float[3,2,2] x) => (float[3,2,2] y) {{ y = {op}{attribute}(x) }}"
    (y,) = run(11, text, x=np.ones((3, 2, 2), np.float32))
    assert y.shape == (3, 2, 2)
    if expected is None:
        assert y.sum() == 3
    else:
        np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-6)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_new_softmaxes_take_one_axis(op: str) -> None:
    text = f"g (float[3,2,2] x) => (float[3,2,2] y) {{ y = {op}<axis = 1>(x) }}"
    (y,) = run(13, text, x=np.ones((3, 2, 2), np.float32))
    assert (np.exp(y) if op == "LogSoftmax" else y).sum() == pytest.approx(6)


def normalization(outputs: str, opset: int, attributes: str = "") -> onnx.ModelProto:
    text = f"""g (float[2,1] x, float[1] s, float[1] b, float[1] m, float[1] v)
        => (float[2,1] y) {{ {outputs} = BatchNormalization{attributes}(x, s, b, m, v) }}"""
    return parsed(opset, text)


@pytest.mark.parametrize("opset", [7, 9, 13, 15])
def test_a_batch_normalization_with_one_output_uses_what_it_is_given(opset: int) -> None:
    one = np.ones(1, np.float32)
    x = np.array([[1], [3]], np.float32)
    inputs = {"x": x, "s": one, "b": 0 * one, "m": one, "v": 4 * one}
    (y,) = CorrectedEvaluator(normalization("y", opset)).run(None, inputs)
    np.testing.assert_allclose(np.asarray(y), [[0], [1]], atol=1e-4)


def test_training_goes_on_as_it_did() -> None:
    inputs = {name: np.ones(1, np.float32) for name in "sbmv"}
    inputs["x"] = np.array([[1], [3]], np.float32)
    model = normalization("y, rm, rv", 15, "<training_mode = 1>")
    (y,) = CorrectedEvaluator(model).run(None, inputs)
    np.testing.assert_allclose(np.asarray(y), [[0], [2]], atol=1e-4)


def test_new_statistics_are_computed_in_float32() -> None:
    inputs = {name: np.full(1, 128, ml_dtypes.bfloat16) for name in "sbmv"}
    inputs["x"] = np.full((1000, 1), 128, ml_dtypes.bfloat16)
    text = """g (bfloat16[1000,1] x, bfloat16[1] s, bfloat16[1] b, bfloat16[1] m, bfloat16[1] v)
        => (bfloat16[1000,1] y, bfloat16[1] rm, bfloat16[1] rv)
        { y, rm, rv = BatchNormalization<training_mode = 1>(x, s, b, m, v) }"""
    evaluator: Any = CorrectedEvaluator(parsed(15, text))
    _, mean, variance = evaluator.run(None, inputs)
    assert mean.tolist() == [128]
    np.testing.assert_allclose(variance.astype(np.float32), 115.2, rtol=2**-8)


@pytest.mark.parametrize(
    "model",
    [
        normalization("y, m1, v1, sm, sv", 9),
        normalization("y", 6),
        normalization("y", 7, "<spatial = 0>"),
        normalization("y, m1, v1", 13),
        onnx.helper.make_model(
            onnx.helper.make_graph(
                [onnx.helper.make_node("Optional", [], ["o"], type=FLOAT_TYPE)], "g", [], []
            ),
            opset_imports=[onnx.helper.make_opsetid("", 18)],
        ),
        parsed(
            17,
            """g (int64 trips, bool go, float[2] x) => (float[2] y) {
                y = Loop(trips, go, x)
                    <body = b (int64 i, bool c, float[2] v) => (bool c, float[2] v) {}>
            }""",
        ),
        parsed(
            8,
            """g (float[1,2] a, float[1,3,2] x) => (float[1,2] y) {
                y = Scan("", a, x) <num_scan_inputs = 1, body = b
                    (float[2] s, float[2] n) => (float[2] t) { t = Add(s, n) }>
            }""",
        ),
    ],
)
def test_what_it_cannot_compute_it_refuses_beforehand(model: onnx.ModelProto) -> None:
    with pytest.raises(NotImplementedError):
        CorrectedEvaluator(model)


@pytest.mark.parametrize("space", [(5,), (5, 6), (3, 4, 5)])
def test_a_global_maximum_is_taken_over_all_axes_in_space(space: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, *space), np.float32)
    sizes = ",".join(map(str, x.shape))
    (y,) = run(17, f"g (float[{sizes}] x) => (float y) {{ y = GlobalMaxPool(x) }}", x=x)
    assert y.shape == (2, 4, *(1 for _ in space))
    assert y.ravel().tolist() == x.reshape(8, -1).max(axis=1).tolist()


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (2, 7, 3, 2), (5, 2, 2, 2)])
@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_every_channel_is_normalised_by_those_around_it(shape: tuple[int, ...], size: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    sizes = ",".join(map(str, shape))
    model = parsed(
        13,
        f"g (float[{sizes}] x) => (float[{sizes}] y)"
        f" {{ y = LRN<size = {size}, alpha = 1.5, beta = 0.5, bias = 2.0>(x) }}",
    )
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    (y,) = CorrectedEvaluator(model).run(None, {"x": x})
    assert np.asarray(y).dtype == x.dtype
    np.testing.assert_allclose(np.asarray(y), np.asarray(expected), rtol=1e-5)


@pytest.mark.parametrize("space", [(), (3,), (2, 1, 2)])
def test_of_an_even_number_of_channels_one_more_is_behind(space: tuple[int, ...]) -> None:
    x = np.ones((1, 3, *space), np.float32) * np.arange(1, 4).reshape(3, *(1 for _ in space))
    text = "g (float[N,C] x) => (float y) { y = LRN<size = 2, alpha = 2.0, beta = 1.0>(x) }"
    (y,) = run(13, text, x=x.astype(np.float32))
    column = y.reshape(3, -1)[:, 0]
    np.testing.assert_allclose(column, [1 / 6, 2 / 14, 3 / 10], rtol=1e-6)


@pytest.mark.parametrize("signal", ["2,60", "2,60,1"])
@pytest.mark.parametrize("given", ["step, window", "step, , length", "step, window, length"])
@pytest.mark.parametrize("onesided", [0, 1])
def test_a_signal_is_transformed_frame_by_frame_as_onnx_runtime_does(
    signal: str, given: str, onesided: int
) -> None:
    model = parsed(
        17,
        f"g (float[{signal}] x, int64 step, float[16] window, int64 length) => (float[a,b,c,d] y)"
        f" {{ y = STFT<onesided = {onesided}>(x, {given}) }}",
    )
    random = np.random.default_rng(0)
    inputs = {
        "x": random.standard_normal([int(each) for each in signal.split(",")], np.float32),
        "step": np.array(7),
        "window": random.random(16, np.float32),
        "length": np.array(16),
    }
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    (y,) = CorrectedEvaluator(model).run(None, inputs)
    assert np.asarray(y).dtype == np.float32
    np.testing.assert_allclose(np.asarray(y), np.asarray(expected), atol=1e-4)


@pytest.mark.parametrize(("step", "length"), [(0, 4), (-1, 4), (1, 0), (1, -1), (1, 9)])
def test_frames_that_do_not_fit_the_signal_are_refused(step: int, length: int) -> None:
    text = "g (float[1,8] x, int64 s, int64 n) => (float y) { y = STFT(x, s, , n) }"
    x = np.ones((1, 8), np.float32)
    with pytest.raises(ValueError, match="do not fit a signal of 8"):
        run(17, text, x=x, s=np.array(step), n=np.array(length))


@pytest.mark.parametrize(
    ("data", "indices", "axis"),
    [((2, 300), (2, 200), 1), ((300, 2), (7, 2), 0), ((2, 3, 4), (1, 5, 2), -2), ((3,), (0,), 0)],
)
def test_elements_are_gathered_as_onnx_runtime_does(
    data: tuple[int, ...], indices: tuple[int, ...], axis: int
) -> None:
    named = [",".join(f"{each}{at}" for at in range(len(data))) for each in "abc"]
    model = parsed(
        13,
        f"g (float[{named[0]}] x, int64[{named[1]}] i) => (float[{named[2]}] y)"
        f" {{ y = GatherElements<axis = {axis}>(x, i) }}",
    )
    random, size = np.random.default_rng(0), data[axis]
    inputs = {
        "x": random.standard_normal(data, np.float32),
        "i": random.integers(-size, size, indices),
    }
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    (y,) = CorrectedEvaluator(model).run(None, inputs)
    assert np.asarray(y).tolist() == np.asarray(expected).tolist()


@pytest.mark.parametrize("index", [3, -4])
def test_elements_outside_are_not_gathered(index: int) -> None:
    text = "g (float[3] x, int64[1] i) => (float[1] y) { y = GatherElements(x, i) }"
    with pytest.raises(IndexError, match="out of bounds for an axis of 3"):
        run(13, text, x=np.ones(3, np.float32), i=np.array([index]))


def matching(pattern: str) -> str:
    return f'g (string[N] x) => (bool[N] y) {{ y = RegexFullMatch<pattern = "{pattern}">(x) }}'


def test_an_expression_that_python_would_backtrack_on_is_matched_at_once() -> None:
    texts = np.array([["a" * 40 + "b", "a" * 40], ["", "é"]], object)
    (y,) = run(20, matching("(a+)+"), x=texts)
    assert y.tolist() == [[False, True], [False, False]]
    (y,) = run(20, matching("."), x=texts)
    assert y.tolist() == [[False, False], [False, True]]


@pytest.mark.parametrize("pattern", ["(?=a)", "(", "a{5000}"])
def test_what_is_no_expression_of_re2_is_refused_beforehand(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not an RE2 expression"):
        CorrectedEvaluator(parsed(20, matching(pattern)))


def test_a_pattern_that_takes_long_to_compile_is_refused_beforehand() -> None:
    with pytest.raises(ValueError, match="at most 1,024 characters here, not of 1,025"):
        CorrectedEvaluator(parsed(20, matching("a" * 1025)))
    with pytest.raises(ValueError, match="too large"):
        CorrectedEvaluator(parsed(20, matching("(.{31}){31}" * 50)))


def test_a_long_pattern_is_compiled_if_it_is_within_the_limits() -> None:
    names = "|".join(f"name{each}" for each in range(100))
    (found,) = run(20, matching(names), x=np.array(["name42", "name100"], object))
    assert found.tolist() == [True, False]


def test_a_function_hands_its_pattern_to_the_layer_inside() -> None:
    text = """g (string[N] x) => (bool[N] y) { y = own.Matches<p = "a+">(x) }
        <domain: "own", opset_import: ["": 20]>
        Matches <p> (v) => (w) { w = RegexFullMatch<pattern: string = @p>(v) }"""
    header = '<ir_version: 8, opset_import: ["": 20, "own": 1]>'
    evaluator = CorrectedEvaluator(parse_model(header + text))
    (y,) = evaluator.run(None, {"x": np.array(["aa", "b"], object)})
    assert np.asarray(y).tolist() == [True, False]


@pytest.mark.parametrize(("p", "expected"), [(1, [-0.25, 0.75]), (2, [-0.316, 0.949])])
def test_a_norm_is_one_of_absolute_values(p: int, expected: list[float]) -> None:
    text = f"g (float[2] x) => (float[2] y) {{ y = LpNormalization<p = {p}>(x) }}"
    (y,) = run(22, text, x=np.array([-1, 3], np.float32))
    np.testing.assert_allclose(y, expected, atol=1e-3)


def test_an_optional_is_the_value_that_it_holds() -> None:
    text = """g (float[2] x) => (float[2] y) { o = Optional(x) y = OptionalGetElement(o) }"""
    x = np.ones(2, np.float32)
    assert run(18, text, x=x)[0] is x


def test_functions_are_corrected_too() -> None:
    text = """g (float[3,2,2] x) => (float[3,2,2] y) { y = own.Mine(x) }
        <domain: "own", opset_import: ["": 11]>
        Mine (v) => (w) { w = Softmax(v) }"""
    header = '<ir_version: 8, opset_import: ["": 11, "own": 1]>'
    evaluator = CorrectedEvaluator(parse_model(header + text))
    (y,) = evaluator.run(None, {"x": np.ones((3, 2, 2), np.float32)})
    np.testing.assert_allclose(np.asarray(y), 0.25)


@pytest.mark.parametrize("opset", [2, 11, 21])
@pytest.mark.parametrize("pads", [(-1, 2), (1, -2), (-1, -1), (0, 0), (-5, 5), (-6, 3), (3, -6)])
def test_a_negative_pad_cuts_off(opset: int, pads: tuple[int, int]) -> None:
    listed = f"{{0, {pads[0]}, 0, {pads[1]}}}"
    given = "x" if opset == 2 else "x, pads"
    text = (
        f"g (float[2,4] x) => (float[a,b] y) <int64[4] pads = {listed}> "
        f"{{ y = Pad{f'<pads = [{listed[1:-1]}]>' if opset == 2 else ''}({given}) }}"
    )
    x = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    session = InferenceSession(parsed(opset, text).SerializeToString())
    (expected,) = session.run(None, {"x": x})
    assert run(opset, text, x=x)[0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("mode", "pads"), [("constant", (-3, -2)), ("constant", (0, -5)), ("edge", (-5, 5))]
)
def test_a_pad_cuts_off_no_more_than_there_is(mode: str, pads: tuple[int, int]) -> None:
    text = f'g (float[a] x, int64[2] p) => (float[b] y) {{ y = Pad<mode = "{mode}">(x, p) }}'
    with pytest.raises(ValueError, match="remove more than the 4 elements"):
        run(21, text, x=np.ones(4, np.float32), p=np.array(pads))


@pytest.mark.parametrize("config", ["", ", strides = [2, 2]", ", strides = [3, 2]"])
@pytest.mark.parametrize("size", [4, 5])
def test_a_maximum_with_same_lower_pads_in_front(config: str, size: int) -> None:
    text = (
        f"g (float[1,1,{size},{size}] x) => (float[a,b,c,d] y) "
        f'{{ y = MaxPool<auto_pad = "SAME_LOWER", kernel_shape = [2, 2]{config}>(x) }}'
    )
    x = np.random.default_rng(0).random((1, 1, size, size), np.float32)
    (expected,) = InferenceSession(parsed(21, text).SerializeToString()).run(None, {"x": x})
    (found,) = run(21, text, x=x)
    assert found.tolist() == expected.tolist()


def test_only_stop_words_are_dropped() -> None:
    text = 'g (string[n] x) => (string[m] y) { y = StringNormalizer<stopwords=["a"]>(x) }'
    evaluator: Any = CorrectedEvaluator(parsed(18, text))
    (y,) = evaluator.run(None, {"x": np.array(["A", "", "b"], object)})
    assert y.tolist() == ["", "b"]
    assert evaluator.run(None, {"x": np.array(["a"], object)})[0].tolist() == [""]


def test_the_logarithm_of_a_softmax_is_finite() -> None:
    text = "g (float[2] x) => (float[2] y) { y = LogSoftmax(x) }"
    (y,) = run(13, text, x=np.array([10_000, 0], np.float32))
    assert y.tolist() == [0, -10_000]


@pytest.mark.parametrize("operator", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_losses_of_a_narrow_type_are_summed_up_in_a_wide_one(operator: str) -> None:
    text = "g (bfloat16[n,c] x, int64[n] t) => (bfloat16 y) { y = %s<reduction = %s>(x, t) }"
    x = np.zeros((1000, 2), ml_dtypes.bfloat16)
    x[:, 1] = -1
    evaluator: Any = CorrectedEvaluator(parsed(18, text % (operator, '"sum"')))
    (y,) = evaluator.run(None, {"x": x, "t": np.ones(1000, np.int64)})
    right = 1000 if operator.startswith("Negative") else 1000 * np.log(1 + np.e)
    assert y.dtype == ml_dtypes.bfloat16
    assert float(y) == pytest.approx(right, rel=2**-8)


SUMS = {
    "Attention": "k = Reshape(x, h) y = Attention(k, k, k)",
    "AveragePool": "y = AveragePool<kernel_shape = [40]>(x)",
    "BatchNormalization": "y, a, b = BatchNormalization<training_mode = 1>(x, v, v, v, v)",
    "CumSum": "y = CumSum(x, two)",
    "GlobalAveragePool": "y = GlobalAveragePool(x)",
    "InstanceNormalization": "y = InstanceNormalization(x, v, v)",
    "LogSoftmax": "y = LogSoftmax(x)",
    "LpNormalization": "y = LpNormalization(x)",
    "LpPool": "y = LpPool<kernel_shape = [900]>(x)",
    "RMSNormalization": "y = RMSNormalization(x, w)",
    "Softmax": "y = Softmax(x)",
    **{
        operator: f"y = {operator}(x, axes)"
        for operator in (
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMean",
            "ReduceSum",
            "ReduceSumSquare",
        )
    },
}


@pytest.mark.parametrize("operator", SUMS)
def test_elements_of_a_narrow_type_are_added_up_in_a_wide_one(operator: str) -> None:
    text = """g (T[n,c,d] x, T[e] w, T[f] v) => (T y) <
        int64 two = {2}, int64[1] axes = {2}, int64[4] h = {1, 2, 1000, 1}> { %s }"""
    x = 1 + np.arange(2000).reshape(1, 2, 1000) % 5 / 4
    given = {"x": x, "w": np.ones(1000), "v": np.arange(1, 3)}
    found = []
    for word, dtype in (("bfloat16", ml_dtypes.bfloat16), ("float", np.float32)):
        typed = text.replace("T[", f"{word}[").replace("T y", f"{word} y") % SUMS[operator]
        evaluator: Any = CorrectedEvaluator(parsed(23, typed))
        found += [evaluator.run(None, {name: each.astype(dtype) for name, each in given.items()})]
    (narrow, *_), (wide, *_) = found
    assert narrow.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(narrow.astype(np.float32), wide, rtol=2**-6)


def test_pads_count_once_where_a_pool_rounds_up() -> None:
    text = """g (float[a,b,c,d] x) => (float y) {
        y = MaxPool<kernel_shape=[3,3], pads=[2,2,2,2], strides=[2,2], ceil_mode=1>(x)
    }"""
    for size, wanted in ((1, 2), (2, 2), (3, 3), (4, 3)):
        x = np.ones((1, 1, size, size), np.float32)
        evaluator: Any = CorrectedEvaluator(parsed(18, text))
        (y,) = evaluator.run(None, {"x": x})
        assert y.shape == (1, 1, wanted, wanted)


@pytest.mark.parametrize("strides", [(2, 2), (3, 3), (1, 3)])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 1, 1)])
def test_a_last_window_counts_only_what_is_there(
    strides: tuple[int, int], pads: tuple[int, int, int, int]
) -> None:
    config = f"ceil_mode=1, kernel_shape=[3,3], strides={[*strides]}, pads={[*pads]}"
    text = f"""g (float[1,1,4,5] x) => (float a, float l) {{
        a = AveragePool<{config}>(x)
        l = LpPool<{config}, p=1>(x)
    }}"""
    x = np.arange(1, 21, dtype=np.float32).reshape(1, 1, 4, 5)
    evaluator: Any = CorrectedEvaluator(parsed(22, text))
    averages, sums = (each[0, 0] for each in evaluator.run(None, {"x": x}))
    assert averages.shape == sums.shape
    for row, column in np.ndindex(*averages.shape):
        first = [row * strides[0] - pads[0], column * strides[1] - pads[1]]
        top, left = (max(each, 0) for each in first)
        window = x[0, 0, top : first[0] + 3, left : first[1] + 3]
        assert averages[row, column] == pytest.approx(window.mean())
        assert sums[row, column] == pytest.approx(window.sum())


@pytest.mark.parametrize("opset", [11, 18, 22])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 4), (2, 1), (2, 2)])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 0, 0), (0, 0, 1, 1)])
def test_a_window_larger_by_less_than_a_stride_takes_what_is_there(
    opset: int, height: int, width: int, pads: tuple[int, ...]
) -> None:
    config = f"kernel_shape=[4,3], strides=[4,3], pads={[*pads]}"
    text = f"""g (float[a,b,c,d] x) => (float a, float m, float l) {{
        a = AveragePool<{config}>(x)
        m = MaxPool<{config}>(x)
        l = LpPool<{config}, p=1>(x)
    }}"""
    x = np.arange(1, 1 + height * width, dtype=np.float32).reshape(1, 1, height, width)
    seen = x[..., : 3 - pads[1]]
    evaluator: Any = CorrectedEvaluator(parsed(opset, text))
    average, largest, total = (each[..., 0, 0] for each in evaluator.run(None, {"x": x}))
    assert average == pytest.approx(seen.mean())
    assert largest == seen.max()
    assert total == pytest.approx(seen.sum())


@pytest.mark.parametrize(
    ("op_type", "height", "config"),
    [
        *(
            (op_type, height, config)
            for op_type in ("AveragePool", "LpPool", "MaxPool")
            for height, config in (
                (1, "kernel_shape=[3,2], strides=[1,2], pads=[0,1,1,0]"),
                (0, "kernel_shape=[3,2], strides=[3,2], pads=[0,1,2,0]"),
                (1, "kernel_shape=[2,2], strides=[3,2], pads=[0,1,1,0], dilations=[2,1]"),
            )
        ),
        (
            "AveragePool",
            1,
            "kernel_shape=[3,2], strides=[3,2], pads=[0,1,1,0], count_include_pad=1",
        ),
    ],
)
def test_a_window_larger_than_the_padded_image_is_refused(
    op_type: str, height: int, config: str
) -> None:
    text = f"g (float[a,b,c,d] x) => (float y) {{ y = {op_type}<{config}>(x) }}"
    evaluator: Any = CorrectedEvaluator(parsed(22, text))
    with pytest.raises(ValueError, match="a window of 3 does not fit into 2 elements"):
        evaluator.run(None, {"x": np.ones((1, 1, height, 1), np.float32)})
    (y,) = evaluator.run(None, {"x": np.ones((1, 1, height + 1, 1), np.float32)})
    assert y.shape == (1, 1, 1, 1)


@pytest.mark.parametrize("strides", ["", ", strides=[1,1]", ", strides=[2,1]"])
@pytest.mark.parametrize("order", [0, 1])
def test_indices_of_a_pool_are_those_of_onnx_runtime(strides: str, order: int) -> None:
    model = parsed(
        18,
        f"""g (float[a,b,c,d] x) => (float y, int64 z) {{
            y, z = MaxPool<kernel_shape=[2,2], storage_order={order}{strides}>(x)
        }}""",
    )
    x = np.random.default_rng(0).permutation(2 * 3 * 3 * 4).reshape(2, 3, 3, 4).astype(np.float32)
    wanted = InferenceSession(model.SerializeToString()).run(None, {"x": x})
    evaluator: Any = CorrectedEvaluator(model)
    for found, each in zip(evaluator.run(None, {"x": x}), wanted, strict=True):
        np.testing.assert_array_equal(found, each)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    "config", ["", ", strides = [2, 1]", ", ceil_mode = 1", ", strides = [3, 3]"]
)
@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
def test_gaps_are_part_of_the_window_that_padding_is_for(
    op_type: str, config: str, auto_pad: str
) -> None:
    """The windows of a pool are those of a convolution with the same attributes."""
    attributes = f'auto_pad = "{auto_pad}", dilations = [2, 3], kernel_shape = [2, 2]'
    text = "g (float[1,1,5,7] x) => (float[a,b,c,d] y) {{ y = {0}<{1}>(x) }}"
    x = np.random.default_rng(0).random((1, 1, 5, 7), np.float32) + 1
    (found,) = run(22, text.format(op_type, attributes + config), x=x)
    strides = [2, 1] if "[2" in config else [3, 3] if "[3" in config else [1, 1]
    wanted = np.zeros([-(-size // step) for size, step in zip((5, 7), strides, strict=True)])
    pads = [(wanted.shape[at] - 1) * strides[at] + (3, 4)[at] - (5, 7)[at] for at in range(2)]
    before = [max(0, each) for each in pads]
    before = [each - each // 2 if auto_pad == "SAME_LOWER" else each // 2 for each in before]
    for row, column in np.ndindex(wanted.shape):
        rows = [row * strides[0] - before[0] + at for at in (0, 2)]
        columns = [column * strides[1] - before[1] + at for at in (0, 3)]
        seen = [x[0, 0, r, c] for r in rows if 0 <= r < 5 for c in columns if 0 <= c < 7]
        wanted[row, column] = {
            "AveragePool": np.mean(seen),
            "LpPool": np.sqrt(np.sum(np.square(seen))),
            "MaxPool": np.max(seen),
        }[op_type]
    np.testing.assert_allclose(found[0, 0], wanted, rtol=1e-5)


def test_pads_before_and_after_may_differ() -> None:
    text = (
        "g (float[a,b,c,d] x) => (float y) { y = MaxPool<kernel_shape=[2,2], pads=[1,1,0,0]>(x) }"
    )
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    assert run(18, text, x=x)[0].tolist() == x.tolist()


LEFT_AT_ONCE = {
    "layers": "(float[N] x) => (float[N] y) { a = Relu(x) y = Softmax(a) }",
    "bodies": """(bool c, float[N] x) => (float[N] y) {
        y = If (c) <then_branch = t () => (float[N] a) { a = Relu(x) },
            else_branch = e () => (float[N] b) { b = Softmax(x) }>
    }""",
    "a function of unknown types": "(float[N] x) => (float[N] y) { a = Relu(x) y = Gelu(a) }",
    "an unknown layer": "(float[N] x) => (float[N] y) { a = Relu(x) y = Nothing(a) }",
}


@pytest.fixture
def no_looks() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def evaluators() -> int:
    return sum(isinstance(each, ReferenceEvaluator | OpRun) for each in gc.get_objects())


@pytest.mark.usefixtures("no_looks")
@pytest.mark.parametrize("kind", [CorrectedEvaluator, Evaluator])
@pytest.mark.parametrize("text", LEFT_AT_ONCE.values(), ids=LEFT_AT_ONCE.keys())
def test_an_evaluator_is_freed_without_a_look_for_garbage(
    kind: type[CorrectedEvaluator], text: str
) -> None:
    proto = parsed(21, f"g {text}")
    there = evaluators()
    with suppress(NotImplementedError):
        kind(proto)
    assert evaluators() == there


def assert_as_onnx_runtime(model: onnx.ModelProto, **inputs: Any) -> None:
    wanted = InferenceSession(model.SerializeToString()).run(None, inputs)
    evaluator: Any = CorrectedEvaluator(model)
    for found, each in zip(evaluator.run(None, inputs), wanted, strict=True):
        np.testing.assert_allclose(found, each, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "strides = [2, 3]",
        "strides = [2, 2], dilations = [2, 1], pads = [1, 0, 0, 1]",
        'strides = [2, 1], auto_pad = "SAME_LOWER"',
        'output_shape = [3, 4], auto_pad = "SAME_UPPER"',
    ],
)
@pytest.mark.parametrize(("group", "channels"), [(1, 2), (2, 1), (2, 3), (4, 2)])
def test_each_group_of_a_transposed_convolution_has_its_own_weights(
    options: str, group: int, channels: int
) -> None:
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((2, 4, 3, 4), np.float32)
    w = numbers.standard_normal((4, channels, 2, 3), np.float32)
    b = np.arange(group * channels, dtype=np.float32)
    for third in ("", ", b"):
        text = f"""g (float[c,d,e,f] x, float[4,{channels},2,3] w, float[o] b) => (float[m,n,p,q] y)
            {{ y = ConvTranspose<group = {group}{"," if options else ""} {options}>(x, w{third}) }}
        """
        assert_as_onnx_runtime(parsed(18, text), x=x, w=w, b=b)


@pytest.mark.parametrize(
    "options",
    [
        "scan_input_axes = [1, -1]",
        "scan_input_directions = [1, 0], scan_output_directions = [1]",
        "scan_input_axes = [2, 0], scan_input_directions = [0, 1], scan_output_axes = [-1]",
        "scan_output_axes = [1], scan_output_directions = [1]",
    ],
)
def test_a_scan_goes_along_any_axis_in_both_directions(options: str) -> None:
    model = parsed(
        18,
        f"""g (float[2,2] s, float[a,b,c] x, float[d,e,f] y) => (float[g,h] t, float[i,j,k] z) {{
            t, z = Scan<num_scan_inputs = 2, {options}, body = b
                (float[2,2] v, float[2,2] p, float[2,2] q) => (float[2,2] w, float[2,2] r) {{
                    w = Add(v, p)
                    r = Sub(v, q)
                }}
            >(s, x, y)
        }}""",
    )
    numbers = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    assert_as_onnx_runtime(model, s=numbers[0], x=numbers + 1, y=3 * numbers)


def test_default_activations_may_be_spelled_out() -> None:
    text = """g (float[s,b,1] x, float[1,6,1] w, float[1,6,2] r) => (float[s,d,b,h] y) {
        y = GRU<hidden_size = 2, activations = ["sigmoid", "Tanh"]>(x, w, r)
    }"""
    numbers = np.random.default_rng(0)
    x, w, r = (
        numbers.standard_normal(each, np.float32) for each in ((3, 1, 1), (1, 6, 1), (1, 6, 2))
    )
    assert_as_onnx_runtime(parsed(14, text), x=x, w=w, r=r)
