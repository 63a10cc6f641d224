"""What OpenVINO would compute otherwise than ONNX, and computes right once it is repaired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from headrace.plugins.openvino.session import tensors
from headrace.plugins.openvino.session.session import Runtime
from headrace.runtime.errors import InvalidModel
from headrace.runtime.network.network import Network
from headrace.testing.case import Case, parse


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime()


def run(runtime: Runtime, text: str, **inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    network = Network.from_bytes(parse(text).SerializeToString())
    hints = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = runtime.compile(runtime.convert(network.model), "CPU", hints)
    outputs = compiled(inputs, share_outputs=False)
    found = (outputs[index] for index in range(len(network.outputs)))
    return dict(zip((port.name for port in network.outputs), found, strict=True))


def request_of(runtime: Runtime, text: str) -> Any:
    model = runtime.convert(Network.from_bytes(parse(text).SerializeToString()).model)
    return runtime.compile(model, "CPU", {}).create_infer_request()


def equal(outputs: Mapping[str, Any], **expected: Any) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(outputs[name], value)


TOP_K = "f ({0}[N,M] x, int64[1] k) => ({0}[N,K] y, int64[N,K] i) {{ y, i = TopK{1}(x, k) }}"


@pytest.mark.parametrize("type_name", ["float", "int64"])
@pytest.mark.parametrize("attributes", ["", "<sorted = 0>"])
def test_of_equal_elements_the_first_ones_are_taken(
    runtime: Runtime, type_name: str, attributes: str
) -> None:
    x = np.array([[1, 3, 3, 3, 2]], np.float32 if type_name == "float" else np.int64)
    outputs = run(runtime, TOP_K.format(type_name, attributes), x=x, k=np.array([3]))
    equal(outputs, y=[[3, 3, 3]], i=[[1, 2, 3]])


def test_the_smallest_are_taken_in_order_too(runtime: Runtime) -> None:
    x = np.array([[1, 0, 0, 3]], np.float32)
    text = TOP_K.format("float", "<largest = 0>")
    equal(run(runtime, text, x=x, k=np.array([3])), y=[[0, 0, 1]], i=[[1, 2, 0]])


@pytest.mark.parametrize("k", [4, 100])
def test_more_elements_than_there_are_give_all_and_no_crash(runtime: Runtime, k: int) -> None:
    x = np.array([[1, 3, 2]], np.float32)
    outputs = run(runtime, TOP_K.format("float", ""), x=x, k=np.array([k]))
    equal(outputs, y=[[3, 2, 1]], i=[[1, 2, 0]])


@pytest.mark.parametrize("axis", [1, -1, 0])
def test_no_elements_are_given_where_none_are_wanted(runtime: Runtime, axis: int) -> None:
    x = np.array([[1, 3, 2], [4, 6, 5]], np.float32)
    text = TOP_K.format("float", f"<axis = {axis}>")
    outputs = run(runtime, text, x=x, k=np.array([0]))
    empty = np.zeros((0, 3) if axis == 0 else (2, 0))
    equal(outputs, y=empty, i=empty)
    for k in (0, 2):
        equal(run(runtime, text, x=x[:0, :0], k=np.array([k])), y=np.zeros((0, 0)))


@pytest.mark.parametrize(("operator", "infinity"), [("Max", -np.inf), ("Min", np.inf)])
@pytest.mark.parametrize("type_name", ["float", "float16"])
def test_the_extreme_of_infinities_is_infinite(
    runtime: Runtime, operator: str, infinity: float, type_name: str
) -> None:
    text = f"""f ({type_name}[N,M] x) => ({type_name}[N,P] y) {{
        axis = Constant<value = int64[1] {{1}}>()
        y = Reduce{operator}(x, axis)
    }}"""
    dtype = np.float32 if type_name == "float" else np.float16
    largest = np.finfo(dtype).max * -np.sign(infinity)
    rows = [[infinity, infinity], [infinity, 1], [-largest, -largest], [1e-7, 1e-7], [-2, 3]]
    rows += [[-infinity, 1], [-infinity, infinity], [-infinity, -infinity], [largest, largest]]
    x = np.array(rows, dtype)
    reduce = np.max if operator == "Max" else np.min
    equal(run(runtime, text, x=x), y=reduce(x, axis=1, keepdims=True))
    equal(run(runtime, text, x=np.ones((2, 0), dtype)), y=np.full((2, 1), infinity))


def test_integers_have_no_infinite_extreme(runtime: Runtime) -> None:
    text = "f (int32[N,2] x) => (int32[P,Q] y) { y = ReduceMax(x) }"
    equal(run(runtime, text, x=np.array([[-5, -7]], np.int32)), y=[[-5]])


CLIPS = {
    "clip": "y = Clip(x, low, high)",
    "least_first": "a = Min(high, x) y = Max(a, low)",
    "greatest_first": "a = Max(low, x) b = Identity(a) y = Min(b, high)",
    "reshaped": "n = Constant<value = int64[1] {-1}>() a = Max(x, low) b = Reshape(a, n)"
    " y = Min(b, high)",
}
NEAR_2_24 = [2**24 - 1, 2**24, 2**24 + 1, 2**24 + 3]
DTYPES = {"int32": np.int32, "int64": np.int64, "uint32": np.uint32, "uint64": np.uint64}


@pytest.mark.parametrize("size", ["N", "8"])
@pytest.mark.parametrize("type_name", DTYPES)
@pytest.mark.parametrize("nodes", CLIPS.values(), ids=CLIPS)
def test_integers_are_clipped_exactly(
    runtime: Runtime, nodes: str, type_name: str, size: str
) -> None:
    x = np.array([*NEAR_2_24, 0, 7, 100_000_007, 2**31 - 1], DTYPES[type_name])
    for low, high in ((16_777_217, 100_000_005), (3, 16_777_217), (0, 2**31 - 1)):
        text = f"""f ({type_name}[{size}] x) => ({type_name}[{size}] y) {{
            low = Constant<value = {type_name} {{{low}}}>()
            high = Constant<value = {type_name} {{{high}}}>()
            {nodes}
        }}"""
        equal(run(runtime, text, x=x), y=np.clip(x, low, high))


@pytest.mark.parametrize("size", ["N", "3"])
@pytest.mark.parametrize("type_name", ["int16", "uint16"])
@pytest.mark.parametrize("layer", ["Add(x, w)", "Sub(x, w)", "Mul(w, x)", "BitwiseNot(x)"])
def test_arithmetic_in_16_bits_drops_the_upper_ones(
    runtime: Runtime, layer: str, type_name: str, size: str
) -> None:
    x, w = np.array([[2**15 - 1, 300, 5], [2**15 - 2, 200, 7]], type_name)
    inputs = {"x": x, "w": w} if "w)" in layer or "(w" in layer else {"x": x}
    declared = ", ".join(f"{type_name}[{size}] {name}" for name in inputs)
    text = f"f ({declared}) => (int32[{size}] y) {{ a = {layer} y = Cast<to = 6>(a) }}"
    equal(run(runtime, text, **inputs), **Case("f", parse(text), inputs).expected())


@pytest.mark.parametrize("size", ["N", "6"])
@pytest.mark.parametrize("type_name", ["int32", "int64", "int8", "float"])
@pytest.mark.parametrize("narrow", ["int16", "uint16"])
def test_a_cast_to_16_bits_drops_the_upper_ones(
    runtime: Runtime, narrow: str, type_name: str, size: str
) -> None:
    code = {"int16": 5, "uint16": 4}[narrow]
    text = f"""f ({type_name}[{size}] x) => ({type_name}[{size}] y, int64[{size}] z) {{
        a = Cast<to = {code}>(x) y = CastLike(a, x) z = Cast<to = 7>(a)
    }}"""
    values = (
        [0, -8, 127, -128, 5, 7]
        if type_name in ("int8", "float")
        else [0, -8, 2**15, -(2**15) - 1, 2**16 + 5, -(2**31)]
    )
    if type_name == "float":
        values = [abs(each) for each in values]
    x = np.array(values, np.dtype(type_name.replace("float", "float32")))
    equal(run(runtime, text, x=x), **Case("f", parse(text), {"x": x}).expected())


QUOTIENTS = {
    "constants": "a = Constant<value = int64[2] {-7, 7}>() b = Constant<value = int64[2] {2, -4}>()"
    " m = Div(a, b)",
    "bytes": "a = Constant<value = int8[2] {-7, 7}>() b = Constant<value = int8[2] {2, -4}>()"
    " q = Div(a, b) m = Cast<to = 7>(q)",
    "sizes": "s = Shape(x) a = Constant<value = int64[1] {9}>() d = Sub(s, a)"
    " b = Constant<value = int64[1] {2}>() m = Div(d, b)",
    "mean": "a = Constant<value = int64[2] {-7, 7}>() b = Constant<value = int64[2] {2, -4}>()"
    " m = Mean(a, b)",
    "data": "b = Constant<value = int64 {2}>() m = Div(x, b)",
}


@pytest.mark.parametrize("size", ["N", "2"])
@pytest.mark.parametrize("nodes", QUOTIENTS.values(), ids=QUOTIENTS)
def test_quotients_of_integers_are_rounded_towards_0(
    runtime: Runtime, nodes: str, size: str
) -> None:
    text = f"f (int64[{size}] x) => (int64[M] y) {{ {nodes} y = Concat<axis = 0>(m, x) }}"
    x = np.array([-3, 5])
    equal(run(runtime, text, x=x), **Case("f", parse(text), {"x": x}).expected())


MAGNITUDES = {
    "cast": "c = Constant<value = int64[3] {-5, 6, -7}>() f = Cast<to = 1>(c) m = Abs(f)",
    "floats": "c = Constant<value = float[3] {5, -6, 7}>() f = Neg(c) m = Abs(f)",
    "joined": "c = Constant<value = int64[3] {-5, 6, -7}>() f = Cast<to = 1>(c)"
    " j = Concat<axis = 0>(x, f) m = Abs(j)",
    "integers": "a = Constant<value = int64 {-3}>() b = Constant<value = int64 {2}>()"
    " d = Constant<value = int64 {1}>() r = Range(a, b, d) p = Abs(r) m = Cast<to = 1>(p)",
    "bytes": "c = Constant<value = int8[3] {5, -6, 7}>() f = Neg(c) p = Abs(f) m = Cast<to = 1>(p)",
    "shape": "s = Shape(x) c = Constant<value = int64[1] {9}>() d = Sub(s, c) p = Abs(d)"
    " m = Cast<to = 1>(p)",
    "data": "m = Abs(x)",
}


@pytest.mark.parametrize("size", ["N", "2"])
@pytest.mark.parametrize("nodes", MAGNITUDES.values(), ids=MAGNITUDES)
def test_a_list_of_magnitudes_has_no_negative_ones(runtime: Runtime, nodes: str, size: str) -> None:
    text = f"f (float[{size}] x) => (float[M] y) {{ {nodes} y = Concat<axis = 0>(m, x) }}"
    x = np.array([-1, np.inf], np.float32)
    case = Case("f", parse(text), {"x": x})
    equal(run(runtime, text, x=x), **case.expected())


SHAPES = {"known": ("[2,1,8]", "[2,3,8]"), "unknown": ("[A,B,C]", "[D,E,F]")}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("type_name", ["int8", "uint8"])
@pytest.mark.parametrize("operator", ["Abs", "Add", "Mul", "Neg", "Sub"])
def test_arithmetic_in_8_bits_drops_the_upper_ones(
    runtime: Runtime, operator: str, type_name: str, shapes: tuple[str, str]
) -> None:
    if (operator, type_name) == ("Neg", "uint8"):
        pytest.skip("ONNX has none")
    dtype, rng = np.dtype(type_name), np.random.default_rng(1)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x, y = (rng.integers(low, high, (2, rows, 8), dtype, endpoint=True) for rows in (1, 3))
    x[0, 0, 0] = low
    one = operator in ("Abs", "Neg")
    inputs = {"x": x} if one else {"x": x, "y": y}
    ports = ", ".join(f"{type_name}{each} {n}" for each, n in zip(shapes, inputs, strict=False))
    text = f"f ({ports}) => ({type_name}[P,Q,R] z) {{ z = {operator}({', '.join(inputs)}) }}"
    compute = {
        "Abs": np.abs, "Add": np.add, "Mul": np.multiply, "Neg": np.negative, "Sub": np.subtract
    }  # fmt: skip
    equal(run(runtime, text, **inputs), z=compute[operator](*inputs.values()))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_products_of_einstein_in_few_bits_drop_the_upper_ones(
    runtime: Runtime, dtype: type
) -> None:
    name = np.dtype(dtype).name
    text = f"""f ({name}[1,2] x, {name}[2,N] w) => ({name}[A,B] y) {{
        y = Einsum<equation = "ij,jk->ik">(x, w)
    }}"""
    x: np.ndarray[Any, Any] = np.array([[100, 3]], dtype)
    w: np.ndarray[Any, Any] = np.array([[100, 1], [7, 2]], dtype)
    equal(run(runtime, text, x=x, w=w), y=x @ w)


@pytest.mark.parametrize(("threshold", "kept"), [(0.5, 2), (0.499, 1), (0.501, 2)])
def test_boxes_that_overlap_by_the_threshold_alone_stay(
    runtime: Runtime, threshold: float, kept: int
) -> None:
    """The second box covers half of what both cover."""
    text = """f (float[1,2,4] boxes, float[1,1,2] scores, float[1] least) => (int64[N,3] y) {
        k = Constant<value = int64[1] {5}>()
        y = NonMaxSuppression(boxes, scores, k, least)
    }"""
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.5]]], np.float32)
    scores = np.array([[[0.9, 0.8]]], np.float32)
    outputs = run(
        runtime, text, boxes=boxes, scores=scores, least=np.array([threshold], np.float32)
    )
    assert len(outputs["y"]) == kept


def test_a_count_of_boxes_below_zero_selects_none_and_leaves_nothing_behind(
    runtime: Runtime,
) -> None:
    text = """f (float[1,3,4] boxes, float[1,1,3] scores, int64 k) => (int64[N,3] y) {
        y = NonMaxSuppression(boxes, scores, k)
    }"""
    boxes = np.array([[[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]], np.float32)
    scores = np.array([[[0.7, 0.9, 0.8]]], np.float32)
    request = request_of(runtime, text)
    for k, kept in ((-2, []), (2, [1, 2]), (-(2**31), []), (3, [1, 2, 0])):
        found = request.infer({"boxes": boxes, "scores": scores, "k": np.array(k)})
        assert next(iter(found.values()))[:, 2].tolist() == kept


def test_boxes_that_do_not_overlap_stay_at_a_threshold_of_zero(runtime: Runtime) -> None:
    text = """f (float[1,2,4] boxes, float[1,1,2] scores) => (int64[N,3] y) {
        k = Constant<value = int64[1] {5}>()
        least = Constant<value = float[1] {0}>()
        y = NonMaxSuppression(boxes, scores, k, least)
    }"""
    boxes = np.array([[[0, 0, 1, 1], [2, 2, 3, 3]]], np.float32)
    outputs = run(runtime, text, boxes=boxes, scores=np.array([[[0.9, 0.8]]], np.float32))
    assert len(outputs["y"]) == 2


def test_bodies_are_repaired_too(runtime: Runtime) -> None:
    text = """f (bool c, float[2,2] x) => (float[P,Q] y) {
        y = If(c) <
            then_branch = a () => (float[1,1] t) { t = ReduceMax(x) },
            else_branch = b () => (float[1,1] e) { e = ReduceMin(x) }
        >
    }"""
    x = np.full((2, 2), -np.inf, np.float32)
    equal(run(runtime, text, c=np.array(True), x=x), y=[[-np.inf]])


SLICE = """f (int64[3] x{0}) => (int64[N] y) {{
    start = Constant<value = int64[1] {{2}}>() end = Constant<value = int64[1] {{-9}}>()
    axis = Constant<value = int64[1] {{0}}>() {1} y = Slice(x, start, end, axis, step)
}}"""


@pytest.mark.parametrize(("step", "y"), [(-(2**31), [3]), (-2, [3, 1])])
def test_the_least_step_of_32_bits_is_no_crash(runtime: Runtime, step: int, y: list[int]) -> None:
    x = np.array([1, 2, 3], np.int64)
    given = SLICE.format(", int64[1] step", "")
    equal(run(runtime, given, x=x, step=np.array([step])), y=y)
    constant = SLICE.format("", f"step = Constant<value = int64[1] {{{step}}}>()")
    equal(run(runtime, constant, x=x), y=y)


RANGE = "f ({0} a, {0} b, {0} c) => ({0}[N] y) {{ y = Range(a, b, c) }}"


@pytest.mark.parametrize("type_name", ["float", "int32", "int64"])
@pytest.mark.parametrize(
    "bounds", [(0, 2, -1), (5, 2, 1), (0, 5, -2), (2, 2, 1), (2, -1, -1), (-1, 6, 3)]
)
def test_a_range_the_wrong_way_round_is_empty(
    runtime: Runtime, type_name: str, bounds: tuple[int, int, int]
) -> None:
    dtype = {"float": np.float32, "int32": np.int32, "int64": np.int64}[type_name]
    given = dict(zip("abc", (np.array(each, dtype) for each in bounds), strict=True))
    equal(run(runtime, RANGE.format(type_name), **given), y=np.arange(*bounds))


@pytest.mark.parametrize(("limit", "y"), [(-3, []), (3, [0, 1, 2])])
def test_a_range_of_constants_but_for_its_limit_is_too(
    runtime: Runtime, limit: int, y: list[int]
) -> None:
    text = """f (int64 b) => (int64[N] y) {
        a = Constant<value = int64 {0}>() c = Constant<value = int64 {1}>() y = Range(a, b, c)
    }"""
    equal(run(runtime, text, b=np.array(limit)), y=y)


def test_a_loop_counts_up_to_its_counter(runtime: Runtime) -> None:
    text = """f (int64 n, int64 x) => (int64 y) {
        t = Constant<value = bool {1}>()
        y = Loop(n, t, x) <body = turn (int64 i, bool going, int64 a) => (bool on, int64 b) {
            on = Identity(going)
            first = Constant<value = int64 {0}>() step = Constant<value = int64 {1}>()
            r = Range(first, i, step) s = ReduceSum<keepdims = 0>(r) b = Add(a, s)
        }>
    }"""
    equal(run(runtime, text, n=np.array(4), x=np.array(3)), y=7)


LOOP = """f ({0} float[1] x) => (float[1] y, float[N,1] z) {{
    {1} y, z = Loop(n, c, x) <body = turn (int64 i, bool going, float[1] a)
        => (bool on, float[1] b, float[1] d) {{ on = Identity(going) b = Add(a, a) d = Neg(b) }}>
}}"""
FIXED = {"n": "n = Constant<value = int64 {2}>()", "c": "c = Constant<value = bool {1}>()"}
TURNS = [(2, True), (0, True), (2, False), (-1, True), (-7, False), (2, True)]


@pytest.mark.parametrize("given", [{"n": "int64"}, {"c": "bool"}, {"n": "int64", "c": "bool"}, {}])
def test_a_loop_of_no_iterations_returns_nothing_of_the_request_before(
    runtime: Runtime, given: dict[str, str]
) -> None:
    inputs = "".join(f"{type_name} {name}, " for name, type_name in given.items())
    fixed = " ".join(text for name, text in FIXED.items() if name not in given)
    request = request_of(runtime, LOOP.format(inputs, fixed))
    for at, (count, going) in enumerate(TURNS):
        turns = [] if ("n" in given and count < 1) or ("c" in given and not going) else [-2, -4]
        x = np.array([at + 1], np.float32)
        values = {"n": np.array(count), "c": np.array(going)}
        found = request.infer({"x": x, **{name: values[name] for name in given}})
        np.testing.assert_array_equal(found[1], np.reshape(turns, (-1, 1)) * x)
        np.testing.assert_array_equal(found[0], x * 2 ** len(turns))


SIZES = "another size in each iteration"
BODY = "<body = turn (int64 i, bool going, float[K] a) => (bool on, float[L] b{}) {{"
CUT = "one = Constant<value = int64[1] {1}>() end = Constant<value = int64[1] {99}>()"
SHRINKING = "on = Identity(going) b = Slice(a, one, end)"


@pytest.mark.parametrize(
    "text",
    [
        f"(float[N] x, int64 n) => (float[M] y, float[P,Q] z) {{ {CUT}"
        f" y, z = Loop(n, , x) {BODY.format(', float[R] c')} {SHRINKING} c = Neg(b) }}> }}",
        "(int64[1] s, float[N,9] x) => (int64[1] y, float[P,Q] z) {"
        " y, z = Scan<num_scan_inputs = 1, body = turn (int64[1] a, float[9] b)"
        " => (int64[1] c, float[R] d) {"
        " one = Constant<value = int64[1] {1}>() none = Constant<value = int64[1] {0}>()"
        " c = Add(a, one) d = Slice(b, none, a) }>(s, x) }",
    ],
)
def test_what_iterations_of_unknown_sizes_give_is_not_joined(runtime: Runtime, text: str) -> None:
    """OpenVINO wrote beyond its memory where an iteration gave more than the first one, and the
    process ended."""
    with pytest.raises(InvalidModel, match=SIZES):
        request_of(runtime, f"f {text}")


def test_a_value_that_a_loop_carries_may_change_its_size(runtime: Runtime) -> None:
    text = f"f (float[N] x, int64 n) => (float[M] y) {{ {CUT} y = Loop(n, , x) {BODY.format('')}"
    x = np.arange(9, dtype=np.float32)
    for count in (0, 3, 20):
        outputs = run(runtime, f"{text} {SHRINKING} }}> }}", x=x, n=np.array(count))
        equal(outputs, y=x[count:])


@pytest.mark.parametrize(("operator", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_elements_of_a_sequence_that_do_not_fit_the_weights_are_refused(
    runtime: Runtime, operator: str, gates: int
) -> None:
    """OpenVINO read beyond them, and computed with what it found there."""
    weights = " ".join(
        f"{name} = ConstantOfShape<value = float[1] {{0.1}}>({name}s)" for name in "wr"
    )
    shapes = " ".join(
        f"{name}s = Constant<value = int64[3] {{1, {2 * gates}, {size}}}>()"
        for name, size in (("w", 3), ("r", 2))
    )
    request = request_of(
        runtime,
        f"f (float[A,B,C] x) => (float[A,D,B,2] y) {{ {shapes} {weights}"
        f" y = {operator}<hidden_size = 2>(x, w, r) }}",
    )
    assert request.infer([np.ones((2, 3, 3), np.float32)])[0].shape == (2, 1, 3, 2)
    for size in (1, 2, 4, 6):
        with pytest.raises(RuntimeError, match="reshape"):
            request.infer([np.ones((2, 3, size), np.float32)])


PAD = """f ({0}[{1}] x, {0} v) => ({0}[P,Q] y) {{
    p = Constant<value = int64[4] {{1, 2, 0, 0}}>() y = Pad(x, p, v)
}}"""


@pytest.mark.parametrize("type_name", ["float", "float16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("sizes", ["2,2", "M,N"])
def test_padding_has_a_value_that_is_not_constant(
    runtime: Runtime, type_name: str, sizes: str
) -> None:
    dtype = np.float32 if type_name == "float" else type_name
    x = np.array([[0, 1], [3, 0]]).astype(dtype)
    outputs = run(runtime, PAD.format(type_name, sizes), x=x, v=np.array(7).astype(dtype))
    equal(outputs, y=np.pad(x, ((1, 0), (2, 0)), constant_values=7))


def test_padding_of_infinities_and_of_nan_leaves_them_apart(runtime: Runtime) -> None:
    x = np.array([[np.inf, np.nan], [1, -np.inf]], np.float32)
    for value in (np.nan, np.inf):
        outputs = run(runtime, PAD.format("float", "2,2"), x=x, v=np.array(value, np.float32))
        equal(outputs, y=np.pad(x, ((1, 0), (2, 0)), constant_values=value))


def test_negative_pads_and_a_computed_value_go_together(runtime: Runtime) -> None:
    text = """f (float[3] x, float v) => (float[P] y) {
        p = Constant<value = int64[2] {-1, 2}>() y = Pad(x, p, v)
    }"""
    x, v = np.array([1, 2, 3], np.float32), np.array(7, np.float32)
    equal(run(runtime, text, x=x, v=v), y=[2, 3, 7, 7])


@pytest.mark.parametrize("type_name", ["int8", "uint8", "int16", "uint16", "int32"])
@pytest.mark.parametrize("size", ["N", "6"])
def test_quotients_are_cut_off_whether_sizes_are_known_or_not(
    runtime: Runtime, type_name: str, size: str
) -> None:
    text = "f ({0}[{1}] x, {0}[{1}] d) => ({0}[{1}] y) {{ y = Div(x, d) }}"
    x, d = np.array([85, 7, 99, 1, 0, 100]), np.array([96, 2, 100, 3, 5, 100])
    signs = np.array([1, -1, 1, -1, 1, -1]) if type_name[0] == "i" else 1
    inputs = {"x": (x * signs).astype(type_name), "d": d.astype(type_name)}
    equal(
        run(runtime, text.format(type_name, size), **inputs), y=np.array([0, 3, 0, 0, 0, 1]) * signs
    )


@pytest.mark.parametrize("type_name", ["float", "float16"])
@pytest.mark.parametrize(("alpha", "other"), [(0.0, 0.5), (0.3, 0.0), (0.0, 0.0), (0.3, 0.5)])
def test_a_factor_or_an_offset_of_zero_is_not_the_default(
    runtime: Runtime, type_name: str, alpha: float, other: float
) -> None:
    text = f"""f ({type_name}[N] x) => ({type_name}[N] y, {type_name}[N] z) {{
        y = HardSigmoid<alpha = {alpha}, beta = {other}>(x)
        z = Selu<alpha = {alpha}, gamma = {other}>(x)
    }}"""
    x = np.array([-2, -0.5, 0, 0.5, 1, 3], np.float32)
    dtype = np.float32 if type_name == "float" else np.float16
    found = run(runtime, text, x=x.astype(dtype))
    np.testing.assert_allclose(found["y"], np.clip(alpha * x + other, 0, 1), rtol=1e-3)
    selu = other * np.where(x > 0, x, alpha * np.expm1(x))
    np.testing.assert_allclose(found["z"], selu, rtol=1e-3)


@pytest.mark.parametrize("used", ["y", "yi", "yj", "yk", "yij", "yijk", "i", "j", "k"])
@pytest.mark.parametrize(("attributes", "axes"), [("", "A"), ("<axis = 0, ", "A,B")])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique_elements_do_not_depend_on_what_reads_them(
    runtime: Runtime, used: str, attributes: str, axes: str, is_sorted: int
) -> None:
    ports = [f"float[{axes}] y" if name == "y" else f"int64[N{name}] {name}" for name in used]
    names = ", ".join(name if name in used else f"other_{name}" for name in "yijk")
    text = f"""f (float[N,2] x) => ({", ".join(ports)}) {{
        {names} = Unique{attributes or "<"}sorted = {is_sorted}>(x)
    }}"""
    x = np.array([[3, 1], [0, 2], [3, 1], [1, 1], [0, 2]], np.float32)
    flat = x if attributes else x.reshape(-1)
    y, i, j, k = np.unique(flat, True, True, True, axis=0)
    if not is_sorted:
        order = np.argsort(i)
        y, i, j, k = y[order], i[order], np.argsort(order)[j.reshape(-1)], k[order]
    expected = {"y": y, "i": i, "j": j.reshape(-1), "k": k}
    equal(run(runtime, text, x=x), **{name: expected[name] for name in used})


@pytest.mark.parametrize(("shape", "axis"), [((2, 33, 2), 1), ((2, 33), -1), ((2, 2, 9), 2)])
@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize("kind", ["float", "int8", "uint8", "bool"])
def test_unique_parts_may_lie_along_any_axis(
    runtime: Runtime, shape: tuple[int, ...], axis: int, kind: str, is_sorted: int
) -> None:
    sizes, found = ",".join("ABC"[: len(shape)]), ",".join("DEF"[: len(shape)])
    text = f"""f ({kind}[{sizes}] x) => ({kind}[{found}] y, int64[N] i, int64[M] j, int64[K] k) {{
        y, i, j, k = Unique<axis = {axis}, sorted = {is_sorted}>(x)
    }}"""
    x = np.random.default_rng(0).integers(0, 2, shape).astype("f4" if kind == "float" else kind)
    y, i, j, k = np.unique(x, True, True, True, axis=axis)
    if not is_sorted:
        order = np.argsort(i)
        y, i, j, k = y.take(order, axis), i[order], np.argsort(order)[j.reshape(-1)], k[order]
    equal(run(runtime, text, x=x), y=y, i=i, j=j.reshape(-1), k=k)


@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique_elements_of_16_bits_are_those_of_their_own_request(
    runtime: Runtime, is_sorted: int
) -> None:
    text = f"""f (bfloat16[N] x) => (bfloat16[M] y) {{
        y, i, j, k = Unique<sorted = {is_sorted}>(x)
    }}"""
    request = request_of(runtime, text)
    for values, expected in (
        ([2], [2]),
        ([2] * 12 + [5] + [2] * 4, [2, 5]),
        ([8.5], [8.5]),
        ([2] * 33, [2]),
    ):
        x, _ = tensors.tensor(np.array(values, ml_dtypes.bfloat16), ir.DataType.BFLOAT16)
        request.set_input_tensor(0, x)
        request.infer()
        y = tensors.array(request.get_output_tensor(0), ir.DataType.BFLOAT16)
        assert y.tolist() == expected


def test_unique_parts_of_a_tensor_of_unknown_rank_are_refused(runtime: Runtime) -> None:
    model = parse("f (float[N] x) => (float[A] y) { y = Unique<axis = 0>(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InvalidModel, match="unknown rank"):
        runtime.convert(Network.from_bytes(model.SerializeToString()).model)


@pytest.mark.parametrize(
    ("sizes", "factors"), [("A,B", "1,4"), ("A,4", "4"), ("1,B,A", "2,1"), ("1,2,2", "2,1")]
)
@pytest.mark.parametrize(
    "layers",
    [
        "m = Mul(x, o)",
        "m = Add(x, o)",
        "m = Sub(x, o)",
        "m = Sub(o, x)",
        "m = Div(x, o)",
        "i = Mul(x, o) m = Neg(i)",
        "i = Mul(x, o) m = Mul(i, k)",
        "i = Mul(x, o) m = Add(i, s)",
        "i = Mul(x, o) j = QuantizeLinear(i, s, z) m = DequantizeLinear(j, s, z)",
    ],
)
def test_each_channel_has_its_own_number_before_a_quantisation(
    runtime: Runtime, sizes: str, factors: str, layers: str
) -> None:
    numbers = np.array([0.2, 0.4, 0.6, 0.8], np.float32)
    shape = [int(size) for size in factors.split(",")]
    given = numbers[: np.prod(shape)].reshape(shape)
    listed = ", ".join(map(str, given.ravel()))
    text = f"""f (float[{sizes}] x) => (int8 y)
        <float s = {{0.05}}, float k = {{-2}}, int8 z = {{0}}, float[{factors}] o = {{{listed}}}> {{
        {layers} y = QuantizeLinear(m, s, z)
    }}"""
    x = np.linspace(-1, 1.7, 4, dtype=np.float32).reshape((1, 4) if len(sizes) == 3 else (1, 2, 2))
    results = {
        "m = Mul(x, o)": x * given,
        "m = Add(x, o)": x + given,
        "m = Sub(x, o)": x - given,
        "m = Sub(o, x)": given - x,
        "m = Div(x, o)": x / given,
        "i = Mul(x, o) m = Neg(i)": -x * given,
        "i = Mul(x, o) m = Mul(i, k)": -2 * x * given,
        "i = Mul(x, o) m = Add(i, s)": x * given + np.float32(0.05),
    }
    expected = results.get(layers, x * given)
    found = run(runtime, text, x=x)["y"].astype(int)
    assert np.abs(found - np.clip(np.rint(expected / 0.05), -128, 127)).max() <= 1
