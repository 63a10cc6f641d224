"""What the fuzzer for devices mutates, how it judges answers, and what it makes smaller."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from headrace.runtime.errors import Unavailable
from headrace.testing.backend_cases.cases import BackendCase, collect
from headrace.testing.backend_cases.worker import DeviceUnderTest
from headrace.testing.case import parse
from tools.fuzz.devices import lane, mutations, report
from tools.fuzz.devices.__main__ import main
from tools.fuzz.devices.answer import Answer, How, Large, Reply, Stage, portable
from tools.fuzz.devices.campaign import Campaign, Fuzzer
from tools.fuzz.devices.canaries import PATTERNS, UNWRITTEN, GuardedArray, shown
from tools.fuzz.devices.compare import differs
from tools.fuzz.devices.generator import VariantGenerator
from tools.fuzz.devices.judge import FAILURES, Finding, Verdict, judge
from tools.fuzz.devices.lane import Lane
from tools.fuzz.devices.mutations import Draft
from tools.fuzz.devices.shrink import shrunk, simplifications
from tools.fuzz.devices.undefined import reasons as undefined
from tools.fuzz.devices.values import changed, converted, resized, rounded
from tools.fuzz.devices.variant import Feed, Variant, input_names, read, snippet, widened, write
from tools.fuzz.devices.worker import reference_answer, run_device, run_reference, runtime_answer

UNSOUND = "tests.support.unsound_device:create_plugin"
ONE = np.ones(2, np.float32)


UNSOUND_CASES = [f"test_{name}" for name in ("abs", "exp", "sin", "cosh", "tan", "relu")]


@pytest.fixture(scope="module")
def collected() -> list[BackendCase]:
    """Once, because it takes seconds."""
    others = ["test_add", "test_gather_0", "test_dropout_*", "test_sequence_insert_at_*"]
    return collect([*UNSOUND_CASES, *others])


@pytest.fixture(scope="module")
def cases(collected: list[BackendCase]) -> list[BackendCase]:
    return [case for case in collected if case.name not in UNSOUND_CASES]


def variant(text: str, *feeds: Feed, origin: str = "test") -> Variant:
    model = parse(text).SerializeToString()
    return Variant("0:0", origin, "Op", model, feeds)


# -- what is mutated --


def test_a_seed_and_a_number_make_the_same_variant_again(cases: list[BackendCase]) -> None:
    one, other = VariantGenerator(cases, 3), VariantGenerator(cases, 3)
    for number in range(30):
        first, second = one.variant(number), other.variant(number)
        assert (first.model, first.mutations) == (second.model, second.mutations)
        for a, b in zip(first.feeds, second.feeds, strict=True):
            assert differs(a, b) is None


def test_other_seeds_make_other_variants(cases: list[BackendCase]) -> None:
    one, other = VariantGenerator(cases, 3), VariantGenerator(cases, 4)
    assert [one.variant(n).model for n in range(5)] != [other.variant(n).model for n in range(5)]


def test_cases_with_random_numbers_are_left_out(cases: list[BackendCase]) -> None:
    names = {VariantGenerator(cases, 0).variant(number).origin for number in range(60)}
    assert names >= {"test_add", "test_gather_0"}
    assert not any(case.random for case in cases if case.name in names)


def test_every_variant_is_a_network_with_a_value_for_each_input(cases: list[BackendCase]) -> None:
    generator = VariantGenerator(cases, 5)
    for each in map(generator.variant, range(60)):
        assert all({*input_names(each.proto)} >= {*feed} for feed in each.feeds)
        assert each.mutations
        assert each.feeds


def test_variants_have_empty_axes_free_dimensions_and_constants(cases: list[BackendCase]) -> None:
    made = [VariantGenerator(cases, 5).variant(number) for number in range(60)]
    arrays = [v for each in made for f in each.feeds for v in f.values() if hasattr(v, "shape")]
    assert any(0 in array.shape for array in arrays)
    assert any(each.proto.graph.initializer for each in made)
    ports = [port.type.tensor_type for each in made for port in each.proto.graph.input]
    assert any(not port.HasField("shape") for port in ports)
    assert any(dim.dim_param for port in ports for dim in port.shape.dim)
    assert any(dim.dim_value for port in ports for dim in port.shape.dim)


def test_alike_sizes_can_change_together() -> None:
    model = parse("g (float[n] a, float[n] b) => (float[n] c) { c = Add(a, b) }")
    shapes = set()
    for seed in range(40):
        draft = Draft(model, {"a": ONE, "b": ONE}, {}, [])
        mutations.mutate_sizes(draft, np.random.default_rng(seed))
        shapes.add((draft.feed["a"].shape, draft.feed["b"].shape))
    assert ((0,), (0,)) in shapes
    assert any(a != b for a, b in shapes)


def test_a_type_changes_wherever_the_operator_has_the_same_one() -> None:
    for seed in range(10):
        model = parse("g (float[n] a, float[n] b) => (float[n] c) { c = Add(a, b) }")
        draft = Draft(model, {"a": ONE, "b": ONE}, {}, [])
        mutations.mutate_type(draft, np.random.default_rng(seed))
        graph = draft.model.graph
        types = {each.type.tensor_type.elem_type for each in (*graph.input, *graph.output)}
        assert len(types) == 1
        assert draft.feed["a"].dtype == draft.feed["b"].dtype
        assert draft.feed["a"].dtype == onnx.helper.tensor_dtype_to_np_dtype(types.pop())


def test_an_attribute_that_cases_use_can_appear() -> None:
    model = parse("g (float[n] a) => (float[n] b) { b = LeakyRelu(a) }")
    known = {("LeakyRelu", "alpha"): [onnx.helper.make_attribute("alpha", 0.5)]}
    mutations.mutate_attribute(Draft(model, {}, known, []), np.random.default_rng(0))
    assert [each.f for each in model.graph.node[0].attribute] == [0.5]


def test_a_tensor_is_repeated_or_cut_to_another_size() -> None:
    assert resized(np.array([1, 2, 3]), (5,)).tolist() == [1, 2, 3, 1, 2]
    assert resized(np.array([[1, 2], [3, 4]]), (1, 0)).shape == (1, 0)
    assert resized(np.zeros((0, 2)), (1, 2)).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.int4, np.int8, np.uint64, bool, object],
)
def test_changed_values_keep_shape_and_type(dtype: Any) -> None:
    array = np.full((2, 3), "a" if dtype is object else 1, dtype)
    for seed in range(20):
        found = changed(array, np.random.default_rng(seed), [2, 3])
        assert (found.shape, found.dtype) == (array.shape, array.dtype)


def test_indices_come_near_the_ends_of_dimensions() -> None:
    found: set[int] = set()
    for seed in range(200):
        found |= {*changed(np.zeros(4, np.int64), np.random.default_rng(seed), [9]).tolist()}
    assert found >= {-10, -9, 8, 9, 2**40, -(2**63), 2**63 - 1}


def test_values_that_another_type_lacks_become_some_of_it() -> None:
    found = converted(np.array([np.nan, 1e9, -3.0]), np.dtype(np.int8))
    assert found.tolist() == [0, 127, -3]


# -- how it is judged --

ADD = variant("g (float[n] a) => (float[n] b) { b = Relu(a) }", {"a": ONE})


def answered(outputs: Mapping[str, Any], **found: str) -> Answer:
    reply = Reply(How.ANSWERED, outputs, **found)
    return Answer(How.ANSWERED, Stage.RUN, True, replies=(reply,))


def refused() -> Answer:
    return Answer(How.ANSWERED, Stage.RUN, True, replies=(Reply(How.REFUSED, text="no"),))


def unable() -> Answer:
    return Answer(How.ANSWERED, Stage.RUN, True, replies=(Reply(How.UNABLE, text="no"),))


RIGHT, WRONG = answered({"b": ONE}), answered({"b": 2 * ONE})
NOTHING = Answer(How.REFUSED, Stage.LOAD)


@pytest.mark.parametrize(
    ("device", "reference", "second", "verdict"),
    [
        (RIGHT, RIGHT, NOTHING, Verdict.RIGHT),
        (WRONG, RIGHT, RIGHT, Verdict.WRONG),
        (WRONG, RIGHT, NOTHING, Verdict.WRONG),
        (WRONG, RIGHT, WRONG, Verdict.DOUBTED),
        (WRONG, RIGHT, refused(), Verdict.DISPUTED),
        (WRONG, refused(), refused(), Verdict.INVALID),
        (WRONG, NOTHING, RIGHT, Verdict.UNKNOWN),
        (WRONG, unable(), refused(), Verdict.UNKNOWN),
        (WRONG, unable(), WRONG, Verdict.DOUBTED),
        (refused(), RIGHT, RIGHT, Verdict.REQUEST_REFUSED),
        (answered({"b": ONE}, foreign="it was written to"), RIGHT, RIGHT, Verdict.FOREIGN),
        (answered({"b": ONE}, foreign=UNWRITTEN), RIGHT, RIGHT, Verdict.RIGHT),
        (answered({"b": 2 * ONE}, foreign=UNWRITTEN), RIGHT, RIGHT, Verdict.FOREIGN),
        (answered({"b": ONE}, foreign=UNWRITTEN), NOTHING, RIGHT, Verdict.FOREIGN),
        (answered({"b": ONE}, unsteady="two answers: 1, 2"), RIGHT, RIGHT, Verdict.UNSTEADY),
        (Answer(How.ENDED, Stage.RUN), RIGHT, RIGHT, Verdict.ENDED),
        (Answer(How.HUNG, Stage.RUN), RIGHT, RIGHT, Verdict.HUNG),
        (Answer(How.HUNG, Stage.RUN), Answer(How.HUNG, Stage.RUN), RIGHT, Verdict.NO_MEMORY),
        (Answer(How.BROKEN, Stage.LOAD, True), RIGHT, RIGHT, Verdict.INTERNAL),
        (Answer(How.REFUSED, Stage.LOAD, False), RIGHT, RIGHT, Verdict.REFUSED),
        (Answer(How.REFUSED, Stage.LOAD, True), RIGHT, RIGHT, Verdict.DISAGREES),
        (Answer(How.REFUSED, Stage.LOAD, True), refused(), RIGHT, Verdict.REFUSED),
        (Answer(How.NO_MEMORY, Stage.LOAD, True), RIGHT, RIGHT, Verdict.NO_MEMORY),
    ],
)
def test_an_answer_is_judged_beside_two_others(
    device: Answer, reference: Answer, second: Answer, verdict: Verdict
) -> None:
    (finding,) = judge(ADD, device, lambda: reference, lambda: second)
    assert finding.verdict is verdict


def test_what_the_reference_does_not_implement_is_no_refusal() -> None:
    normal = "y = LayerNormalization<stash_type = 10>(x, s)"
    model = parse(f"g (float[2,3] x, float[3] s) => (float[2,3] y) {{ {normal} }}")
    feed = {"x": np.ones((2, 3), np.float32), "s": np.ones(3, np.float32)}
    given = Variant("0:0", "test", "LayerNormalization", model.SerializeToString(), (feed,))
    assert reference_answer(given).replies[0].how is How.UNABLE


def test_a_size_that_the_reference_cannot_find_out_is_no_refusal() -> None:
    text = """g (float[a,b] x) => (float[c,d,e] y) {
        to = Constant<value = int64[3] {0, 0, -1}>() y = Reshape(x, to) }"""
    feed = {"x": np.ones((2, 0), np.float32)}
    given = Variant("0:0", "test", "Reshape", parse(text).SerializeToString(), (feed,))
    assert reference_answer(given).replies[0].how is How.UNABLE


STEEP = """g (float[n] x) => (float y) {
    m = ReduceMean<axes=[0]>(x)
    d = Sub(x, m)
    y = Div(d, d)
}"""


@pytest.mark.parametrize(("text", "verdict"), [
    (STEEP, Verdict.UNDEFINED),
    (STEEP.replace("Div(d, d)", "Abs(d)"), Verdict.WRONG),
])  # fmt: skip
def test_numbers_that_are_left_of_rounding_are_not_compared(text: str, verdict: Verdict) -> None:
    given = variant(text, {"x": np.full(2, 0.84, np.float32)})
    apart = Answer(How.ANSWERED, Stage.RUN, replies=(_of(y=ONE), _of(y=3 * ONE)))
    one, other = (Answer(How.ANSWERED, Stage.RUN, replies=(_of(y=n * ONE),)) for n in (1, 2))
    judged = judge(given, other, lambda: one, lambda: one, lambda: apart)
    assert judged[0].verdict is verdict
    steady = judge(given, other, lambda: one, lambda: one, lambda: one)
    assert steady[0].verdict is Verdict.WRONG


JUMPING = "g (float16[n] x, float16 h) => (float16[n] y) { m = Add(x, h) y = Round(m) }"
_AT_THE_JUMP = {"x": np.array([0, 1e-4], np.float16), "h": np.array(0.5, np.float16)}


@pytest.mark.parametrize(("more", "verdict"), [(1.0, Verdict.UNDEFINED), (0.0, Verdict.WRONG)])
def test_a_device_may_round_what_has_more_digits_than_its_type(
    more: float, verdict: Verdict
) -> None:
    given = variant(JUMPING, _AT_THE_JUMP)
    own, first, wider = (
        Answer(How.ANSWERED, Stage.RUN, replies=(_of(y=np.array([0, number], dtype)),))
        for number, dtype in ((1, np.float16), (0, np.float16), (more, np.float32))
    )
    (finding,) = judge(given, own, lambda: first, lambda: first, widened=lambda: wider)
    assert finding.verdict is verdict


def test_floats_of_16_bits_are_widened_in_a_network_and_its_requests() -> None:
    given = variant(JUMPING, _AT_THE_JUMP)
    answers = [runtime_answer(each).replies[0].outputs for each in (given, widened(given))]
    assert [answer["y"].tolist() for answer in answers if answer] == [[0, 0], [0, 1]]
    assert widened(widened(given)).model == widened(given).model
    assert widened(ADD) is ADD


@pytest.mark.parametrize("mode", ["tf_crop_and_resize", "half_pixel"])
def test_the_nearest_element_in_a_crop_rests_on_rounding(mode: str) -> None:
    text = f"""g (float[1,1,4,1] x, float[8] r) => (float y) <int64[4] s = {{1, 1, 1, 1}}> {{
        y = Resize<coordinate_transformation_mode = "{mode}">(x, r, , s) }}"""
    feed = {"x": np.zeros((1, 1, 4, 1), np.float32), "r": np.zeros(8, np.float32)}
    assert undefined.rests_on_rounding(variant(text, feed)) == (mode == "tf_crop_and_resize")


@pytest.mark.parametrize(("to", "error"), [(10, 2e-2), (1, 2e-3), (11, 1e-6), (7, 0.0)])
def test_outputs_are_as_coarse_as_what_they_went_through(to: int, error: float) -> None:
    text = f"""g (double[n] x) => (double[n] y) {{
        c = Cast<to = {to}>(x) m = Mul(c, c) y = CastLike(m, x) }}"""
    given = variant(text, {"x": np.ones(2)})
    assert undefined.coarseness(given) == error
    near = {"y": np.full(2, 1 + error / 2)}
    assert differs(near, {"y": np.ones(2)}, least=error) is None
    assert (differs(near, {"y": np.ones(2)}) is None) == (error <= 1e-6)


@pytest.mark.parametrize(("kind", "dtype"), [("float16", np.float16), ("float", np.float32)])
def test_the_bin_of_a_frequency_rests_on_rounding_and_is_open_in_few_bits(
    kind: str, dtype: type
) -> None:
    text = f"""g (int32 n, int32 l, int32 r, {kind} a, {kind} b) => (float[c,d] y) {{
        y = MelWeightMatrix(n, l, r, a, b) }}"""
    sizes = {"n": np.array(100), "l": np.array(16), "r": np.array(8192)}
    given = variant(text, {**sizes, "a": np.zeros((), dtype), "b": np.full((), 4096, dtype)})
    assert undefined.rests_on_rounding(given)
    assert (undefined.reason(given, 0) is not None) == (dtype is np.float16)


def test_numbers_move_by_some_steps_and_others_not_at_all() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        value = np.full(50, 0.75, dtype)
        moved = rounded(value, rng)
        assert moved.dtype == value.dtype
        assert 1 < len({*moved.tolist()}) <= 2
        info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        np.testing.assert_allclose(
            moved.astype(float), 0.75, rtol=2 * float(info.eps) + 64 * 2.0**-23
        )
    flat = np.full(38416, 0.84396827, np.float32)
    variances = []
    for _ in range(8):
        moved = rounded(flat, rng)
        variances.append(float(np.mean(moved * moved) - np.mean(moved) ** 2))
    assert min(variances) < 0 < max(variances)
    assert rounded(np.arange(3), rng).tolist() == [0, 1, 2]


def test_the_other_device_is_asked_only_where_the_reference_differs() -> None:
    def ask() -> Answer:
        raise AssertionError("nobody needs it")

    judge(ADD, RIGHT, lambda: RIGHT, ask)
    judge(ADD, refused(), ask, ask)


GRID = "g (float t, int64[n] s) => (float y) {{ y = AffineGrid<align_corners={}>(t, s) }}"
LARGEST = "g (float[n] a) => (float[m] b) <int64[1] k = {{1}}> {{ b, i = TopK<sorted={}>(a, k) }}"
POWER = "g (int64[n] a, int64[n] e) => (int64[n] b) { b = Pow(a, e) }"
MANY = np.full(3, 2**30, np.int32)
MATRIX = np.ones((1, 2), np.float32)
LINE = """g (float[n,2] x) => (int64[n] y, float[n,c] z) {{
    y, z = ai.onnx.ml.LinearClassifier<coefficients = [1.0, 1.0, 1.0, 1.0],
        classlabels_ints = [0, 1], intercepts = {}>(x) }}"""
VECTORS = """g (float[n,2] x) => (int64[n] y, float[n,c] z) {{
    y, z = ai.onnx.ml.SVMClassifier<
        vectors_per_class = [1, 1], classlabels_ints = [0, 1] {}>(x) }}"""
VOTES = """g (float[n,2] x) => (int64[n] y, float[n,c] z) {{
    y, z = ai.onnx.ml.TreeEnsembleClassifier<class_ids = {}, classlabels_int64s = {}>(x) }}"""
RING = (
    "g (float[1,2,1] a, float[1,2,1] u, int64[1] w) => (float[1,2,1] y) "
    '{{ y = TensorScatter <mode = "{}"> (a, u, w) }}'
)
UPPER = 'g (string[1] x) => (string[1] y) { y = StringNormalizer<case_change_action = "UPPER">(x) }'
SCALE = "g (float x) => (float y) { y = ai.onnx.ml.Scaler<offset = [1.0], scale = [1.0]>(x) }"
QUANTISE = "g (float[n] a, float[n] s) => (uint8[n] b) { b = QuantizeLinear<axis=0>(a, s) }"


@pytest.mark.parametrize(
    ("text", "feed", "is_open"),
    [
        ("g (float[n] a) => (float b) { b = ReduceSum(a) }", {"a": ONE * np.nan}, True),
        ("g (float[n] a) => (float[n] b) { b = Exp(a) }", {"a": ONE * np.nan}, True),
        ("g (float[n] a) => (float[n] b) { b = Exp(a) }", {"a": ONE * np.inf}, False),
        ("g (float[n] a) => (float[n] b) { b = Identity(a) }", {"a": ONE * np.nan}, False),
        ("g (float[n] a) => (int8[n] b) { b = Cast<to=3>(a) }", {"a": ONE * np.inf}, True),
        ("g (float[n] a) => (float8e8m0[n] b) { b = Cast<to=24>(a) }", {"a": ONE}, False),
        ("g (float[n] a) => (float8e8m0[n] b) { b = Cast<to=24>(a) }", {"a": -ONE}, True),
        ("g (float[n] a) => (float[n] b) { b = Div(a, a) }", {"a": ONE * 1e-40}, True),
        ("g (float[n] a) => (float[n] b) { b = Div(a, a) }", {"a": ONE * 1e-37}, False),
        ("g (float[n] a) => (float[n] b) { b = Neg(a) }", {"a": ONE * 0}, False),
        ("g (int8[n] a) => (int8[n] b) { b = Div(a, a) }", {"a": np.zeros(2, np.int8)}, True),
        ("g (int8[n] a) => (int8[n] b) { b = Div(a, a) }", {"a": np.ones(2, np.int8)}, False),
        ("g (float[n] a) => (float b) { b = ReduceMean(a) }", {"a": ONE[:0]}, True),
        ("g (int8[n] a) => (int8 b) { b = ReduceL1(a) }", {"a": np.array([-128], np.int8)}, True),
        ("g (int8[n] a) => (int8 b) { b = ReduceL1(a) }", {"a": np.array([-127], np.int8)}, False),
        ("g (int64[n] a) => (int64[n] b) { b = Shrink(a) }", {"a": np.array([2**24 + 1])}, True),
        ("g (int64[n] a) => (int64[n] b) { b = Shrink(a) }", {"a": np.array([2**24])}, False),
        ("g (int32[n] a) => (int32 b) { b = ReduceSum(a) }", {"a": MANY}, True),
        ("g (int32[n] a) => (int32 b) { b = ReduceMax(a) }", {"a": MANY}, False),
        ("g (int64[n] a) => (int64 b) { b = ReduceSum(a) }", {"a": MANY.astype(int)}, False),
        ("g (int64[n] a) => (int64 b) { b = ReduceProd(a) }", {"a": MANY.astype(int)}, True),
        ("g (int64[n] a) => (int64 b) { b = ReduceSumSquare(a) }", {"a": MANY.astype(int)}, True),
        (POWER, {"a": np.array([3, 3]), "e": np.array([33, 33])}, False),
        (POWER, {"a": np.array([3, 3]), "e": np.array([34, 34])}, True),
        (LARGEST.format(0), {"a": ONE}, True),
        (LARGEST.format(1), {"a": ONE}, False),
        (QUANTISE, {"a": ONE, "s": np.array([0, 1], np.float32)}, True),
        (QUANTISE, {"a": ONE, "s": np.array([2, 1], np.float32)}, False),
        (GRID.format(1), {"t": ONE, "s": np.array([1, 1, 4, 1])}, True),
        (GRID.format(1), {"t": ONE, "s": np.array([1, 1, 4, 2])}, False),
        (GRID.format(0), {"t": ONE, "s": np.array([1, 1, 4, 1])}, False),
        (GRID.format(1), {"t": ONE, "s": np.array([1, 1, 1, 4, 2])}, False),
        (GRID.format(1), {"t": ONE, "s": np.array([1, 1, 2, 4, 1])}, True),
        (LINE.format([1.0]), {"x": MATRIX}, True),
        (LINE.format([1.0, 1.0]), {"x": MATRIX}, False),
        (LINE.format([1.0, 1e38]), {"x": MATRIX}, True),
        (VECTORS.format(""), {"x": MATRIX}, True),
        (VECTORS.format(", prob_a = [1.0], prob_b = [1.0]"), {"x": MATRIX}, False),
        (VOTES.format([0, 0], [0, 1]), {"x": MATRIX}, True),
        (VOTES.format([0, 1], [0, 1]), {"x": MATRIX}, False),
        (VOTES.format([0, 0], [0, 1, 2]), {"x": MATRIX}, False),
        (SCALE, {"x": MATRIX}, False),
        (SCALE, {"x": ONE}, True),
        (UPPER, {"x": np.array(["straße"], object)}, True),
        (UPPER, {"x": np.array(["été"], object)}, False),
        (RING.format("circular"), {"w": np.array([2**63 - 1])}, True),
        (RING.format("circular"), {"w": np.array([2**30])}, False),
        (RING.format("linear"), {"w": np.array([2**63 - 1])}, False),
    ],
)
def test_values_that_onnx_leaves_open_are_not_compared(
    text: str, feed: Feed, is_open: bool
) -> None:
    assert (undefined.reason(variant(text, feed), 0) is not None) == is_open


def test_a_busy_machine_makes_the_time_limit_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (12.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert lane.load() == 3


def test_two_answers_are_right_where_numbers_are_random_alone() -> None:
    drops = "g (float[2] a, bool t) => (float[2] b) { b = Dropout(a, , t) }"
    for training, verdict in ((True, Verdict.UNDEFINED), (False, Verdict.UNSTEADY)):
        given = variant(drops, {"a": ONE, "t": np.array(training)})
        found = judge(
            given, answered({"b": ONE}, unsteady="two answers: b"), *[lambda: NOTHING] * 2
        )
        assert [each.verdict for each in found] == [verdict]
    given = variant(drops, {"a": ONE, "t": np.array(True)})
    text = "answered, and then refused: b"
    found = judge(given, answered({"b": ONE}, unsteady=text), *[lambda: NOTHING] * 2)
    assert [each.verdict for each in found] == [Verdict.UNSTEADY]


def test_where_values_are_open_form_still_counts() -> None:
    nan = variant("g (float[n] a) => (float b) { b = ReduceSum(a) }", {"a": ONE * np.nan})
    of_form = judge(nan, answered({"b": ONE}), lambda: answered({"b": ONE[:1]}), lambda: NOTHING)
    of_value = judge(nan, answered({"b": ONE}), lambda: answered({"b": 2 * ONE}), lambda: NOTHING)
    assert [each.verdict for each in of_form + of_value] == [Verdict.WRONG, Verdict.UNDEFINED]


def test_the_reference_answers_in_the_type_that_the_network_declares() -> None:
    text = "g (float16[n] a, float[n] w) => (float[n] b) { b = RMSNormalization(a, w) }"
    model = parse(text)
    model.opset_import[0].version = 23
    start = variant(text, {"a": ONE.astype(np.float16), "w": ONE})
    start = replace(start, model=model.SerializeToString())
    (reply,) = reference_answer(start).replies
    assert reply.outputs is not None
    assert reply.outputs["b"].dtype == np.float32
    sequence = "g (float16[n] a) => (seq(float[n]) b) { b = SequenceConstruct(a) }"
    (reply,) = reference_answer(variant(sequence, {"a": ONE.astype(np.float16)})).replies
    assert reply.outputs is not None
    assert [each.dtype for each in reply.outputs["b"]] == [np.float32]


def test_large_outputs_are_compared_by_their_form() -> None:
    large = portable({"b": np.zeros(3 << 20)})
    assert isinstance(large["b"], Large)
    assert differs(large, large) is None
    found = differs({"b": ONE}, large)
    assert found is not None
    assert found[0] == "shape"


def test_inexact_numbers_are_right_and_quantised_ones_may_be_off_by_one() -> None:
    assert differs({"b": ONE * np.float32(1.001)}, {"b": ONE}) is None
    assert differs({"b": ONE * np.float32(1.01)}, {"b": ONE}) is not None
    counted = np.array([5], np.uint8)
    assert differs({"b": counted + np.uint8(1)}, {"b": counted}) is not None
    assert differs({"b": counted + np.uint8(1)}, {"b": counted}, steps=1) is None


def test_the_reference_answers_each_request_by_itself() -> None:
    add = variant(
        "g (float[n] a, float[m] b) => (float[k] c) { c = Add(a, b) }",
        {"a": ONE, "b": ONE},
        {"a": ONE, "b": np.ones(3, np.float32)},
    )
    assert [reply.how for reply in reference_answer(add).replies] == [How.ANSWERED, How.REFUSED]


# -- foreign memory --


def test_a_guarded_array_holds_the_same_values_between_guard_zones() -> None:
    guard = GuardedArray(ONE, 0)
    assert guard.array.tolist() == ONE.tolist()
    assert guard.array.ctypes.data % 64 == 0
    assert guard.is_intact()
    behind = np.lib.stride_tricks.as_strided(guard.array, (16,))
    assert PATTERNS[0] in behind.tobytes()
    assert shown({"y": behind}, 0) == "an output holds bytes from beside an input"
    assert shown({"y": behind}, 1) == ""
    behind[8] = 1
    assert not guard.is_intact()


def test_memory_that_nobody_wrote_is_seen_in_an_output() -> None:
    for byte in (0x5A, 0xA5):
        unwritten = np.full(16, byte, np.uint8).view(np.float32)
        assert shown({"y": unwritten}, 0) == UNWRITTEN
    assert shown({"y": np.full(4, 0x5A, np.uint8)}, 0) == ""


# -- what is made smaller --


def shrink(start: Variant, fails: Callable[[Variant], bool]) -> Variant:
    assert fails(start)
    found = shrunk(start, fails, lambda: True)
    assert fails(found)
    return found


def test_one_request_one_element_and_plain_values_remain() -> None:
    given = [{"a": np.arange(12, dtype=np.float32).reshape(3, 4) + by} for by in (0, 100, 0)]
    start = variant("g (float[n, m] a) => (float[n, m] b) { b = Relu(a) }", *given)
    found = shrink(start, lambda each: any((feed["a"] > 50).any() for feed in each.feeds))
    (feed,) = found.feeds
    assert feed["a"].shape == (1, 1)


def test_an_axis_without_elements_stays_where_the_failure_needs_it() -> None:
    start = variant(
        "g (float[2, 0, 5] a) => (float b) { b = ReduceSum(a) }",
        {"a": np.zeros((2, 0, 5), np.float32)},
    )
    found = shrink(start, lambda each: each.feeds[0]["a"].size == 0)
    assert found.feeds[0]["a"].shape == (1, 0, 1)
    declared = found.proto.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in declared] == [1, 0, 1]


def test_layers_of_unknown_types_are_made_fewer() -> None:
    """onnx's own inference ends the process on a LabelEncoder whose input has no type."""
    start = variant(
        """g (float[n] a) => (float d)
        {
            b = other.Unknown(a)
            c = ai.onnx.ml.LabelEncoder<keys_int64s = [1], values_floats = [1.0]>(b)
            e = Neg(a)
            f = Abs(e)
            d = Add(c, f)
        }""",
        {"a": ONE},
    )
    found = shrink(start, lambda each: each.proto.graph.node[0].op_type == "Unknown")
    assert len(found.proto.graph.node) < 5


def test_attributes_and_layers_that_do_not_matter_go() -> None:
    start = variant(
        "g (float[n] a) => (float[n] d) "
        "{ b = LeakyRelu<alpha = 0.5>(a) c = Neg(b) d = Neg(c) e = Neg(d) }",
        {"a": ONE},
    )
    found = shrink(start, lambda each: "LeakyRelu" in str(each.proto.graph.node[0]))
    assert len(found.proto.graph.node) < 4
    assert not found.proto.graph.node[0].attribute


def test_no_simplification_is_the_variant_itself(cases: list[BackendCase]) -> None:
    generator = VariantGenerator(cases, 5)
    for number in range(20):
        start = generator.variant(number)
        assert shrunk(start, lambda _: True, counted(300)) is not start
        for simpler in simplifications(start):
            same = len(simpler.feeds) == len(start.feeds) and simpler.model == start.model
            assert not same or any(
                differs(one, other) is not None
                for one, other in zip(simpler.feeds, start.feeds, strict=True)
            )


def counted(most: int) -> Callable[[], bool]:
    left = iter(range(most))
    return lambda: next(left, None) is not None


def test_shrinking_ends_with_its_budget() -> None:
    start = variant("g (float[n] a) => (float[n] b) { b = Relu(a) }", {"a": np.arange(64.0)})
    assert shrunk(start, lambda _: True, lambda: False) is start


# -- what is kept --


def test_a_variant_is_read_as_it_was_written(tmp_path: Path) -> None:
    start = variant(
        "g (float[n] a, seq(float[n]) s, optional(float[n]) o) => (float[n] b) { b = Relu(a) }",
        {"a": ONE, "s": [ONE, 2 * ONE], "o": None},
        {"a": 3 * ONE, "s": []},
    )
    write(start, tmp_path / "kept")
    found = read(tmp_path / "kept")
    assert found.model == start.model
    assert found.name == "kept"
    assert differs(found.feeds[0], {"a": ONE, "s": [ONE, 2 * ONE]}) is None
    assert found.feeds[1]["a"].tolist() == [3, 3]


def test_the_code_that_is_printed_makes_the_network_and_its_inputs() -> None:
    start = variant(
        "g (float[n] a, bfloat16[n] c) => (float[n] b) { b = Relu(a) }",
        {"a": np.array([1, np.nan], np.float32), "c": np.array([1, 2], ml_dtypes.bfloat16)},
    )
    lines = snippet(start, "CPU").splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines[: lines.index('""")') + 1]).replace("from headrace", "#"), names)
    assert names["model"].graph.node[0].op_type == "Relu"
    given = eval(lines[-1].removeprefix("print(network.infer(").removesuffix("))"), names)
    assert differs(given, start.feeds[0]) is None


# -- a device with faults --


@pytest.fixture(scope="module")
def campaign(collected: list[BackendCase]) -> Campaign:
    chosen = [case for case in collected if case.name in UNSOUND_CASES]
    generator = VariantGenerator(chosen, 1)
    device = Lane("UNSOUND", run_device, (DeviceUnderTest("UNSOUND", {}, UNSOUND),), 20)
    reference = Lane("reference", run_reference, (), 20)
    variants = [plain(generator, operator) for operator in generator.operators]
    try:
        fuzzer = Fuzzer(device, reference, None, shrink_seconds=1)
        return fuzzer.run(variants, time.monotonic() + 3600)
    finally:
        device.stop()
        reference.stop()


def plain(generator: VariantGenerator, operator: str) -> Variant:
    """A variant of the operator whose requests have elements and are right on a sound device."""
    for each in map(generator.variant, range(1000)):
        values = [value for feed in each.feeds for value in feed.values()]
        plain_values = all(v.size and v.dtype == np.float32 and v.ndim for v in values)
        if each.operator == operator and values and plain_values:
            return each
    raise AssertionError(operator)


@pytest.mark.long
def test_each_fault_of_a_device_is_found_and_blamed_on_its_operator(campaign: Campaign) -> None:
    found = {(failure.operator, failure.verdict) for failure in campaign.failures.values()}
    assert found == {
        ("Abs", Verdict.ENDED),
        ("Exp", Verdict.INTERNAL),
        ("Sin", Verdict.WRONG),
        ("Tan", Verdict.WRONG),
        ("Cosh", Verdict.FOREIGN),
    }
    assert campaign.networks == 6
    assert campaign.restarts > 0
    assert campaign.counts[Verdict.RIGHT] > 0


def test_each_failure_is_confirmed_and_one_request_shows_it(campaign: Campaign) -> None:
    for failure in campaign.failures.values():
        assert failure.confirmed
        if failure.verdict is not Verdict.ENDED:  # which takes a new process for each trial
            assert len(failure.smallest.feeds) == 1


def test_a_failure_is_described_with_code_and_kept_in_a_folder(
    campaign: Campaign, tmp_path: Path
) -> None:
    failure = next(each for each in campaign.failures.values() if each.operator == "Sin")
    text = report.describe("UNSOUND", failure)
    assert text.startswith("UNSOUND: Sin: wrong (values)")
    assert "--replay 1:" in text
    folder = report.keep(tmp_path, "UNSOUND", failure)
    assert read(folder).model == failure.smallest.model
    assert (folder / "failure.txt").read_text(encoding="utf-8") == text + "\n"


def test_the_table_has_a_row_for_each_verdict_that_counts(campaign: Campaign) -> None:
    lines = report.table([campaign]).splitlines()
    assert {f"| {verdict.value} " for verdict in FAILURES} <= {
        line[: line.index("|", 1)] for line in lines
    }
    assert "UNSOUND: 1 x process ended, Abs, run, SIGABRT" in report.failures(campaign)


def test_the_reference_does_not_run_what_a_device_refuses(cases: list[BackendCase]) -> None:
    class Refusing(Lane):
        def start(self) -> None:
            pass

        def ask(self, variant: Variant, patience: float = 1.0) -> Answer:
            return NOTHING

    class Unwanted(Refusing):
        def ask(self, variant: Variant, patience: float = 1.0) -> Answer:
            raise AssertionError("nobody needs it")

    device = Refusing("DEVICE", run_device, (), 1)
    unwanted = Unwanted("reference", run_reference, (), 1)
    variants = map(VariantGenerator(cases, 1).variant, range(5))
    found = Fuzzer(device, unwanted, unwanted).run(variants, time.monotonic() + 3600)
    assert found.counts == {Verdict.REFUSED: 5}


def asked(lane: Lane, given: Any) -> Answer:
    """What a process answers that is stopped afterwards."""
    try:
        return lane.ask(given)
    finally:
        lane.stop()


@pytest.mark.long
def test_a_device_that_hangs_is_given_up() -> None:
    device = Lane("UNSOUND", run_device, (DeviceUnderTest("UNSOUND", {}, UNSOUND),), 0.5)
    answer = asked(device, variant("g (float[n] a) => (float[n] b) { b = Neg(a) }", {"a": ONE}))
    assert (answer.how, answer.stage) == (How.HUNG, Stage.RUN)


@pytest.mark.long
def test_a_process_that_ends_at_its_start_says_why() -> None:
    device = Lane("A..B", run_device, (DeviceUnderTest("A..B"),), 20)
    with pytest.raises(Unavailable, match=r"ended at its start: exit status 1\n(.*\n)*.*'A\.\.B'"):
        device.start()


@pytest.mark.long
def test_a_process_that_ends_by_an_exception_says_which() -> None:
    class Broken:
        def __reduce__(self) -> Any:
            return int, ("x",)

    answer = asked(Lane("reference", run_reference, (), 20), Broken())
    assert answer.how is How.ENDED
    assert answer.text.startswith("exit status 1 ValueError: ")


@pytest.mark.long
def test_an_exception_before_a_variant_is_not_its_own() -> None:
    class Late:
        """Cannot be read at first."""

        def __init__(self) -> None:
            self.states = iter([(int, ("x",)), (str, ())])

        def __reduce__(self) -> Any:
            return next(self.states)

    reference = Lane("reference", run_reference, (), 20)
    answer = asked(reference, Late())
    assert (answer.how, reference.restarts) == (How.REFUSED, 1)


def test_an_operator_that_ends_the_process_again_and_again_is_skipped() -> None:
    class Ending(Lane):
        def start(self) -> None:
            pass

        def ask(self, variant: Variant, patience: float = 1.0) -> Answer:
            return Answer(How.ENDED, Stage.RUN, text="SIGSEGV")

    device = Ending("DEVICE", run_reference, (), 1)
    made = [replace(ADD, name=f"0:{number}") for number in range(10)]
    found = Fuzzer(device, device, None, shrink_seconds=0).run(made, time.monotonic() + 60)
    assert (found.networks, found.skipped) == (3, 7)
    assert [failure.count for failure in found.failures.values()] == [3]


# -- the command line --


@pytest.mark.long
def test_the_command_line_fails_where_a_device_does(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    collected: list[BackendCase],
) -> None:
    sine = [case for case in collected if case.name == "test_sin"]
    monkeypatch.setattr("tools.fuzz.devices.__main__.collect", lambda _: sine)
    device = ["--device", "UNSOUND", "--factory", UNSOUND]
    more = ["--count", "3", "--seconds", "3600", "--out", str(tmp_path)]
    assert main([*device, *more]) == 1
    said = capsys.readouterr().out
    assert "UNSOUND: Sin: wrong (values)" in said
    (kept,) = tmp_path.glob("*WRONG*")
    assert main(["--device", "UNSOUND", "--factory", UNSOUND, "--replay", str(kept)]) == 1
    assert "UNSOUND: request 0: wrong" in capsys.readouterr().out


def test_a_pattern_that_no_case_has_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.fuzz.devices.__main__.collect", lambda _: [])
    with pytest.raises(SystemExit, match="2"):
        main(["--device", "CPU", "--cases", "no such case"])


def test_a_finding_of_a_network_names_no_request() -> None:
    assert Finding(Verdict.REFUSED).feed is None


def test_what_cancels_out_may_differ_by_the_rounding_of_what_it_was() -> None:
    given = variant(
        "g (float[n] x) => (float y) { y = ReduceSum(x) }", {"x": np.array([3e4, -3e4], np.float32)}
    )
    zero = Answer(How.ANSWERED, Stage.RUN, replies=(_of(y=np.array(0, np.float32)),))
    near = Answer(How.ANSWERED, Stage.RUN, replies=(_of(y=np.array(1e-3, np.float32)),))
    far = Answer(How.ANSWERED, Stage.RUN, replies=(_of(y=np.array(1, np.float32)),))
    assert judge(given, near, lambda: zero, lambda: zero)[0].verdict is Verdict.RIGHT
    assert judge(given, far, lambda: zero, lambda: zero)[0].verdict is Verdict.WRONG


def test_a_refusal_is_compared_by_requests_of_the_declared_shapes_alone() -> None:
    given = variant("g (float[2] x) => (float[2] y) { y = Abs(x) }", {"x": np.ones(3, np.float32)})
    refused = Answer(How.REFUSED, Stage.LOAD, claimed=True)
    runs = Answer(How.ANSWERED, Stage.RUN, replies=(_of(y=np.ones(3, np.float32)),))
    assert judge(given, refused, lambda: runs, lambda: None)[0].verdict is Verdict.REFUSED
    fits = replace(given, feeds=({"x": ONE},))
    assert judge(fits, refused, lambda: runs, lambda: None)[0].verdict is Verdict.DISAGREES


@pytest.mark.parametrize(
    ("text", "value", "is_open"),
    [
        ("g (float[n] x) => (int4[n] y) { y = Cast<to=22>(x) }", 7.9, False),
        ("g (float[n] x) => (int4[n] y) { y = Cast<to=22>(x) }", 8.0, True),
        ("g (float[n] x) => (double[n] y) { y = Abs(x) }", 1.0, True),
        ("g (float[n] x) => (float[n] y) { y = Abs(x) }", 1.0, False),
    ],
)
def test_casts_out_of_range_and_types_that_do_not_fit_have_no_right_answer(
    text: str, value: float, is_open: bool
) -> None:
    given = variant(text, {"x": np.array([value], np.float32)})
    assert (undefined.reason(given, 0) is not None) == is_open


def test_a_loop_that_fills_the_memory_is_none_that_ends_the_process() -> None:
    body = "<body = b (int64 i, bool c) => (bool d, int64 s) { d = Identity(c) s = Identity(i) }>"
    given = variant(f"g (int64 n) => (int64 y) {{ y = Loop {body} (n) }}", {"n": np.array(2**40)})
    ended = Answer(How.ENDED, Stage.RUN)
    endless = Answer(How.HUNG, Stage.RUN)
    assert judge(given, ended, lambda: endless, lambda: None)[0].verdict is Verdict.NO_MEMORY
    assert judge(given, ended, lambda: None, lambda: None)[0].verdict is Verdict.ENDED


def _of(**outputs: Any) -> Reply:
    return Reply(How.ANSWERED, outputs)
