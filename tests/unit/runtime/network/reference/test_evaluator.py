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


def test_new_statistics_have_the_type_of_the_old_ones() -> None:
    inputs = {name: np.ones(1, np.float32) for name in "sbmv"}
    inputs["x"] = np.array([[1], [3]], np.float16)
    text = """g (float16[2,1] x, float[1] s, float[1] b, float[1] m, float[1] v)
        => (float16[2,1] y, float[1] rm, float[1] rv)
        { y, rm, rv = BatchNormalization<training_mode = 1>(x, s, b, m, v) }"""
    outputs = CorrectedEvaluator(parsed(15, text)).run(None, inputs)
    assert [np.asarray(each).dtype.name for each in outputs] == ["float16", "float32", "float32"]


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


@pytest.mark.parametrize("p", [-1, 0, 3])
def test_a_norm_that_onnx_does_not_define_is_refused(p: int) -> None:
    text = f"g (float[2] x) => (float[2] y) {{ y = LpNormalization<p = {p}>(x) }}"
    with pytest.raises(ValueError, match="p must be 1 or 2"):
        run(22, text, x=np.array([-1, 3], np.float32))


def recurrent(op: str, gates: int, direction: str, layout: int) -> onnx.ModelProto:
    ways = 2 if direction == "bidirectional" else 1
    sizes = "b,5,2" if layout else "5,b,2"
    return parsed(
        14,
        f"""g (float[{sizes}] x, float[{ways},{3 * gates},2] w, float[{ways},{3 * gates},3] r,
            int32[b] lengths, float[h,i,3] first) => (float[c,d,e,f] y, float[j,k,l] last) {{
            y, last = {op}<hidden_size = 3, direction = "{direction}", layout = {layout}>
                (x, w, r, , lengths, first)
        }}""",
    )


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_each_sequence_of_a_recurrent_layer_has_its_own_length(
    op: str, gates: int, direction: str, layout: int
) -> None:
    rng = np.random.default_rng(gates)
    ways = 2 if direction == "bidirectional" else 1
    inputs = {
        "x": rng.random((3, 5, 2), np.float32),
        "w": rng.random((ways, 3 * gates, 2), np.float32),
        "r": rng.random((ways, 3 * gates, 3), np.float32),
        "lengths": np.array([5, 1, 3], np.int32),
        "first": rng.random((3, ways, 3), np.float32),
    }
    by_steps = {**inputs, "x": inputs["x"].swapaxes(0, 1), "first": inputs["first"].swapaxes(0, 1)}
    model = recurrent(op, gates, direction, layout)
    made, last = CorrectedEvaluator(model).run(None, inputs if layout else by_steps)
    # ONNX Runtime has no kernel for rows first.
    session = InferenceSession(recurrent(op, gates, direction, 0).SerializeToString())
    expected, final = session.run(None, by_steps)
    if layout:
        expected, final = expected.transpose(2, 0, 1, 3), final.swapaxes(0, 1)
    np.testing.assert_allclose(np.asarray(made), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(last), final, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [-1, 0, 6])
def test_a_sequence_has_from_one_step_to_all(length: int) -> None:
    inputs = {
        "x": np.ones((5, 1, 2), np.float32),
        "w": np.ones((1, 3, 2), np.float32),
        "r": np.ones((1, 3, 3), np.float32),
        "lengths": np.array([length], np.int32),
        "first": np.ones((1, 1, 3), np.float32),
    }
    with pytest.raises(NotImplementedError, match="1 to 5"):
        CorrectedEvaluator(recurrent("RNN", 1, "forward", 0)).run(None, inputs)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("opset", "layer"),
    [
        (7, "Upsample<scales = [1., 1., 2., 1.5], {}>(x)"),
        (9, "Upsample<{}>(x, s)"),
        (10, "Resize<{}>(x, s)"),
    ],
)
def test_old_operators_enlarge_images_from_their_corners(opset: int, layer: str, mode: str) -> None:
    call = layer.format(f'mode = "{mode}"')
    model = parsed(opset, f"g (float[1,2,3,4] x) => (float[a,b,c,d] y) {{ y = {call} }}")
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 2, 1.5], np.float32), "s")
    model.graph.initializer.append(scales)
    x = np.random.default_rng(0).random((1, 2, 3, 4), np.float32)
    (found,) = CorrectedEvaluator(model).run(None, {"x": x})
    (expected,) = InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [0.3, 0.5, 0.6, 0.7, 0.9])
def test_a_resize_of_set_10_takes_the_element_after_each_place_if_there_are_fewer(
    scale: float,
) -> None:
    """As in ONNX's case `resize_downsample_scales_nearest` of that set."""
    call = 'Resize<mode = "nearest">(x, s)'
    model = parsed(10, f"g (float[1,1,9,8] x) => (float[a,b,c,d] y) {{ y = {call} }}")
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 2, scale], np.float32), "s")
    model.graph.initializer.append(scales)
    x = np.arange(72, dtype=np.float32).reshape(1, 1, 9, 8)
    (found,) = CorrectedEvaluator(model).run(None, {"x": x})
    (expected,) = InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(np.asarray(found), expected)


def test_an_overload_of_a_function_is_the_one_that_is_called() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z) {
        y = own.Scale:twice(x) z = own.Scale:squared(x)
    }
    <domain: "own", overload: "twice", opset_import: ["": 20]> Scale (v) => (w) { w = Add(v, v) }
    <domain: "own", overload: "squared", opset_import: ["": 20]> Scale (v) => (w) { w = Mul(v, v) }
    """
    model = parse_model(f'<ir_version: 10, opset_import: ["": 20, "own": 1]>{text}')
    for _ in range(2):  # a model may be read again
        y, z = CorrectedEvaluator(model).run(None, {"x": np.array([3, 5], np.float32)})
        assert np.asarray(y).tolist() == [6, 10]
        assert np.asarray(z).tolist() == [9, 25]


def test_a_function_hands_an_attribute_on_through_another() -> None:
    text = """g (float[2] x) => (float[2] y) { y = own.outer<alpha = 0.5>(x) }
    <domain: "own", opset_import: ["": 20]>
    inner <slope> (v) => (w) { w = LeakyRelu<alpha: float = @slope>(v) }
    <domain: "own", opset_import: ["": 20, "own": 1]>
    outer <alpha> (v) => (w) { t = own.inner<slope: float = @alpha>(v) w = Identity(t) }"""
    model = parse_model(f'<ir_version: 10, opset_import: ["": 20, "own": 1]>{text}')
    (y,) = CorrectedEvaluator(model).run(None, {"x": np.array([-4, 4], np.float32)})
    assert np.asarray(y).tolist() == [-2, 4]


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


def test_a_sequence_takes_a_tensor_behind_its_last() -> None:
    text = "g (seq(float) s, float t, int64 p) => (seq(float) y) { y = SequenceInsert(s, t, p) }"
    evaluator: Any = CorrectedEvaluator(parsed(18, text))
    first, last = np.float32(1), np.float32(2)
    (y,) = evaluator.run(None, {"s": [first], "t": last, "p": np.array(1)})
    assert [float(each) for each in y] == [1, 2]
    with pytest.raises(IndexError):
        evaluator.run(None, {"s": [first], "t": last, "p": np.array(2)})


def test_lengths_of_a_split_add_up() -> None:
    text = "g (float[a] x, int64[n] s) => (seq(float[b]) y) { y = SplitToSequence(x, s) }"
    evaluator: Any = CorrectedEvaluator(parsed(18, text))
    x = np.arange(3, dtype=np.float32)
    assert [len(each) for each in evaluator.run(None, {"x": x, "s": np.array([2, 1])})[0]] == [2, 1]
    with pytest.raises(ValueError, match="lengths"):
        evaluator.run(None, {"x": x, "s": np.array([2])})


def test_only_stop_words_are_dropped() -> None:
    text = 'g (string[n] x) => (string[m] y) { y = StringNormalizer<stopwords=["a"]>(x) }'
    evaluator: Any = CorrectedEvaluator(parsed(18, text))
    (y,) = evaluator.run(None, {"x": np.array(["A", "", "b"], object)})
    assert y.tolist() == ["", "b"]
    assert evaluator.run(None, {"x": np.array(["a"], object)})[0].tolist() == [""]


def test_a_fractional_depth_is_cut() -> None:
    text = "g (int64[n] i, float d, float[2] v) => (float[n, m] y) { y = OneHot(i, d, v) }"
    feed = {"i": np.array([0]), "d": np.float32(1.9), "v": np.array([0, 1], np.float32)}
    evaluator: Any = CorrectedEvaluator(parsed(18, text))
    assert evaluator.run(None, feed)[0].tolist() == [[1]]


def test_fractional_indices_are_cut() -> None:
    text = "g (float[n] i, int64 d, float[2] v) => (float[n, m] y) { y = OneHot(i, d, v) }"
    given = np.array([0.1, 1.9, -0.5], np.float32)
    feed = {"i": given, "d": np.array(2), "v": np.array([0, 1], np.float32)}
    evaluator: Any = CorrectedEvaluator(parsed(18, text))
    assert evaluator.run(None, feed)[0].tolist() == [[1, 0], [0, 1], [1, 0]]


def test_integers_are_sampled_between_their_places() -> None:
    text = "g (int32[1,1,1,2] x, float[1,1,1,2] p) => (int32[1,1,1,1] y) { y = GridSample(x, p) }"
    given = np.array([10, 20], np.int32).reshape(1, 1, 1, 2)
    (y,) = run(22, text, x=given, p=np.zeros((1, 1, 1, 2), np.float32))
    assert y.tolist() == [[[[15]]]]


@pytest.mark.parametrize(("operator", "opset"), [("CumSum", 14), ("CumProd", 26)])
def test_a_cumulation_along_no_axis_is_refused(operator: str, opset: int) -> None:
    text = f"g (float[2,2] x, int32 axis) => (float[2,2] y) {{ y = {operator}(x, axis) }}"
    x = np.full((2, 2), 2, np.float32)
    with pytest.raises(IndexError):
        run(opset, text, x=x, axis=np.array(-(2**31), np.int32))
    (y,) = run(opset, text, x=x, axis=np.array(-1, np.int32))
    assert y.tolist() == [[2, 4], [2, 4]]


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


def test_a_mask_of_one_column_is_for_all_keys_before_operator_set_24() -> None:
    model = parsed(
        23,
        """g (float[a,b,c,d] q, float[e,f,h,i] k, float[j,l] mask) => (float y) {
        y = Attention(q, k, k, mask)
    }""",
    )
    k = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    feed = {"q": np.zeros((1, 1, 1, 4), np.float32), "k": k, "mask": np.zeros((1, 1), np.float32)}
    evaluator: Any = CorrectedEvaluator(model)
    (y,) = evaluator.run(None, feed)
    np.testing.assert_allclose(y, k.mean(2, keepdims=True))


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("opset", [23, 24, 25])
def test_the_products_of_an_attention_are_capped_in_mode_1_alone(mode: int, opset: int) -> None:
    model = parsed(
        opset,
        f"""g (float[a,b,c,d] q, float[e,f,h,i] k) => (float y, float products) {{
        y, , , products = Attention<softcap = 2.0, qk_matmul_output_mode = {mode}>(q, k, k)
    }}""",
    )
    q, k = (np.arange(start, start + 8, dtype=np.float32).reshape(1, 1, 2, 4) for start in (0, 1))
    evaluator: Any = CorrectedEvaluator(model)
    products = evaluator.run(None, {"q": q, "k": k})[-1]
    plain = q @ k.transpose(0, 1, 3, 2) / 2
    np.testing.assert_allclose(products, 2 * np.tanh(plain / 2) if mode else plain, rtol=1e-6)


@pytest.mark.parametrize("sorted_", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("outputs", [1, 4])
def test_unique_parts_are_those_that_onnx_runtime_finds(
    axis: int | None, sorted_: int, outputs: int
) -> None:
    along = "" if axis is None else f", axis={axis}"
    names = ["y", "i", "j", "c"][:outputs]
    model = parsed(
        18,
        f"""g (float[a,b] x) => (float y{"".join(f", int64 {each}" for each in names[1:])}) {{
            {", ".join(names)} = Unique<sorted={sorted_}{along}>(x)
        }}""",
    )
    x = np.array([[3, 1, 3], [1, 1, 1], [3, 1, 3]], np.float32)
    wanted = InferenceSession(model.SerializeToString()).run(None, {"x": x})
    evaluator: Any = CorrectedEvaluator(model)
    for found, each in zip(evaluator.run(None, {"x": x}), wanted, strict=True):
        np.testing.assert_array_equal(found, each)


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


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-(2**63), -2, 0, 1, 2**63 - 1])
def test_a_diagonal_may_be_any_integer(k: int, upper: int) -> None:
    text = f"g (int64[a,b] x, int64 k) => (int64 y) {{ y = Trilu<upper={upper}>(x, k) }}"
    x = np.arange(6).reshape(2, 3)
    (y,) = run(18, text, x=x, k=np.array(k))
    offsets = np.arange(3) - np.arange(2)[:, np.newaxis]
    kept = offsets >= k if upper else offsets <= k
    assert y.tolist() == np.where(kept, x, 0).tolist()


def test_the_mean_of_a_layer_normalization_has_the_precision_of_float32() -> None:
    text = """g (bfloat16[a,b] x, bfloat16[b] w) => (bfloat16 y, float mean) {
        y, mean = LayerNormalization(x, w)
    }"""
    x = np.array([[0, 0.400390625, 0.98046875, 0, 0]], ml_dtypes.bfloat16)
    y, mean = run(17, text, x=x, w=np.ones(5, ml_dtypes.bfloat16))
    assert (y.dtype, mean.dtype) == (x.dtype, np.float32)
    np.testing.assert_allclose(mean, x.astype(np.float32).mean(1, keepdims=True), rtol=1e-6)


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


def test_a_list_of_zero_points_of_the_first_matrix_has_one_for_each_row() -> None:
    text = """g (uint8[a,b] x, uint8[b,c] w, uint8[a] p, uint8[c] q) => (int32[a,c] y)
        { y = MatMulInteger(x, w, p, q) }"""
    x, w = np.array([[5, 6], [7, 8]], np.uint8), np.array([[1, 2], [3, 4]], np.uint8)
    p, q = np.array([1, 2], np.uint8), np.array([0, 1], np.uint8)
    (y,) = run(13, text, x=x, w=w, p=p, q=q)
    assert y.tolist() == [[4 * 1 + 5 * 3, 4 * 1 + 5 * 3], [5 * 1 + 6 * 3, 5 * 1 + 6 * 3]]
    with pytest.raises(ValueError, match="broadcast"):
        run(13, text, x=x, w=w, p=np.array([1, 2, 3], np.uint8), q=q)


def test_a_list_of_scales_of_the_first_matrix_has_one_for_each_row() -> None:
    text = """g (uint8[a,b] x, float[a] s, uint8[a] p, uint8[b,c] w, float t, uint8 q)
        => (uint8[a,c] y) { y = QLinearMatMul(x, s, p, w, t, q, t, q) }"""
    x, w = np.array([[5, 6], [7, 8]], np.uint8), np.array([[1], [2]], np.uint8)
    p, scales = np.array([1, 2], np.uint8), np.array([1, 2], np.float32)
    (y,) = run(21, text, x=x, s=scales, p=p, w=w, t=np.float32(1), q=np.uint8(0))
    assert y.tolist() == [[4 + 5 * 2], [2 * (5 + 6 * 2)]]


def test_pads_before_and_after_may_differ() -> None:
    text = (
        "g (float[a,b,c,d] x) => (float y) { y = MaxPool<kernel_shape=[2,2], pads=[1,1,0,0]>(x) }"
    )
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    assert run(18, text, x=x)[0].tolist() == x.tolist()


@pytest.mark.parametrize("loss", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize(
    ("target", "weights", "why"),
    [((2,), (3,), ""), ((1,), (3,), "the target"), ((2, 1), (3,), "the target"), ((2,), (4,), "3")],
)
def test_a_loss_takes_one_class_for_each_place_and_one_weight_for_each_class(
    loss: str, target: tuple[int, ...], weights: tuple[int, ...], why: str
) -> None:
    text = f"g (float[2,3] x, int64[n] t, float[m] w) => (float y) {{ y = {loss}(x, t, w) }}"
    feed: Any = {
        "x": np.zeros((2, 3), np.float32),
        "t": np.zeros(target, np.int64),
        "w": np.ones(weights, np.float32),
    }
    if not why:
        assert np.isfinite(run(13, text, **feed)[0])
        return
    with pytest.raises(ValueError, match=why):
        run(13, text, **feed)


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
        "strides = [3, 3], output_padding = [1, 2], output_shape = [7, 9]",
        'output_shape = [3, 4], auto_pad = "SAME_UPPER"',
        "output_shape = [3, 4]",
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


def test_a_mean_has_the_shape_of_all_its_inputs() -> None:
    model = parsed(13, "g (float[1,n] x, float[n,1] y) => (float[n,n] z) { z = Mean(x, y) }")
    x = np.array([[1, 2]], np.float32)
    assert_as_onnx_runtime(model, x=x, y=x.T)


@pytest.mark.parametrize("operator", ["Softsign", "ReduceLogSumExp", "ReduceLogSumExp<keepdims=0>"])
def test_a_single_number_is_taken(operator: str) -> None:
    model = parsed(18, f"g (float x) => (float y) {{ y = {operator}(x) }}")
    assert_as_onnx_runtime(model, x=np.array(-3, np.float32))


def test_the_logarithm_of_sums_takes_infinities_and_nothing() -> None:
    text = "g (float[a,b] x) => (float[a] y) { y = ReduceLogSumExp<axes = [1], keepdims = 0>(x) }"
    inf = np.inf
    rows = np.array([[1, 2], [inf, 1], [-inf, 1], [-inf, -inf], [1000, 1000]], np.float32)
    with np.errstate(divide="ignore"):
        (found,) = run(13, text, x=rows)
        (of_nothing,) = run(13, text, x=np.empty((2, 0), np.float32))
    np.testing.assert_allclose(found, np.logaddexp(rows[:, 0], rows[:, 1]), rtol=1e-6)
    assert of_nothing.tolist() == [-inf, -inf]


@pytest.mark.parametrize(
    ("operator", "gates", "option"),
    [
        ("GRU", 3, 'activations = ["HardSigmoid", "Relu"]'),
        ("GRU", 3, "clip = 0.5"),
        ("LSTM", 4, 'activations = ["Sigmoid", "Tanh", "Relu"]'),
        ("LSTM", 4, "input_forget = 1"),
        ("RNN", 1, "activation_alpha = [0.5]"),
        ("RNN", 1, "clip = 0.5"),
    ],
)
def test_a_recurrent_layer_with_functions_that_would_be_ignored_is_refused(
    operator: str, gates: int, option: str
) -> None:
    rows = gates * 2
    text = f"""g (float[s,b,1] x, float[1,{rows},1] w, float[1,{rows},2] r) => (float y) {{
        y = {operator}<hidden_size = 2, {option}>(x, w, r)
    }}"""
    with pytest.raises(NotImplementedError, match=operator):
        CorrectedEvaluator(parsed(14, text))


def test_default_activations_may_be_spelled_out() -> None:
    text = """g (float[s,b,1] x, float[1,6,1] w, float[1,6,2] r) => (float[s,d,b,h] y) {
        y = GRU<hidden_size = 2, activations = ["sigmoid", "Tanh"]>(x, w, r)
    }"""
    numbers = np.random.default_rng(0)
    x, w, r = (
        numbers.standard_normal(each, np.float32) for each in ((3, 1, 1), (1, 6, 1), (1, 6, 2))
    )
    assert_as_onnx_runtime(parsed(14, text), x=x, w=w, r=r)
