"""Which layers OPENVINO claims, and the reasons that it gives for the others."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from headrace.plugins.openvino.claims.allowed import VERSION
from headrace.plugins.openvino.claims.forms import covers, form_of
from headrace.plugins.openvino.claims.table import Claims, written
from headrace.plugins.openvino.claims.unclaimed import claims_of, fixed_values, unclaimed
from headrace.plugins.openvino.start import installed_version
from headrace.runtime.network.type_inference import infer_types
from headrace.testing.backend_cases.cases import BackendCase, collect

WRONG = (
    "test_attention_3d_local_window",
    "test_attention_4d_diff_heads_mask4d_padded_kv",
    "test_bitshift_left_int32_shift_ge_width",
    "test_cast_FLOAT_to_FLOAT8E4M3FN",
    "test_dft",
    "test_lstm_with_peepholes",
    "test_reduce_max_empty_set",
    "test_resize_downsample_scales_linear_antialias",
    "test_resize_tf_crop_and_resize",
    "test_tile",
    "test_top_k_uint64",
)
RIGHT = ("test_relu", "test_conv_with_strides_padding", "test_gemm_all_attributes", "test_erf")


def parsed(text: str, opset: int = 17) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {text}')
    model = ir.from_proto(proto)
    infer_types(model)
    return model


def reasons(text: str, opset: int = 17, **further: object) -> list[str]:
    return [*unclaimed(parsed(text, opset), **further).values()]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cases() -> dict[str, BackendCase]:
    return {case.name: case for case in collect([*WRONG, *RIGHT])}


def sized(case: BackendCase) -> ir.Model:
    model = ir.from_proto(onnx.load_from_string(case.model))
    infer_types(model)
    return model


def test_the_list_was_made_with_the_installed_openvino() -> None:
    assert installed_version() == VERSION, "run `make claims`, or `make backend-versions`"


@pytest.mark.parametrize("name", WRONG)
def test_a_case_that_openvino_alone_gets_wrong_is_not_claimed(
    name: str, cases: dict[str, BackendCase]
) -> None:
    assert unclaimed(sized(cases[name]))


@pytest.mark.parametrize("name", RIGHT)
def test_a_case_that_openvino_alone_gets_right_is_claimed(
    name: str, cases: dict[str, BackendCase]
) -> None:
    assert not unclaimed(sized(cases[name]))


def test_a_network_of_usual_layers_is_claimed_with_all_sizes_known() -> None:
    text = """(float[1,3,8,8] x, float[4,3,3,3] w, float[5] b) => (float[n,5] y)
        <float[64,5] m>
        { c = Conv(x, w) r = Relu(c) p = MaxPool<kernel_shape=[2,2]>(r) f = Flatten(p)
          s = Softmax<axis=1>(f) y = Identity(s) }"""
    found = unclaimed(parsed(text.replace("<float[64,5] m>", "").replace("[n,5]", "")))
    assert {node.op_type for node in found} <= {"Flatten"}


def test_an_unknown_number_of_axes_is_named() -> None:
    assert reasons("(float x, int64[k] a) => (float[n] y) { z = Squeeze(x, a) y = Relu(z) }")[
        -1
    ] == ("the number of axes of 'z' is not known")


def test_sizes_need_not_be_known() -> None:
    assert not reasons("(float[n,m] x) => (float[n,m] y) { y = Relu(x) }")


def test_an_operator_that_was_not_tried_is_named() -> None:
    (reason,) = reasons("(float[2] x) => (float[2] y) { y = own.Unheard(x) }")
    assert "the type" not in reason
    assert reason == "own.Unheard is not claimed"


RESHAPED = """(float[n,4] x) => (float[m] y) <int64[1] f = {4}>
    { s = Shape<end = 1>(x) l = Mul(s, f) y = Reshape(x, l) }"""


def test_what_follows_from_sizes_is_a_constant_and_is_not_judged() -> None:
    """A Reshape is claimed with a constant shape alone."""
    assert not reasons(RESHAPED)
    (reason,) = reasons("(float[n,4] x, int64[1] l) => (float[m] y) { y = Reshape(x, l) }")
    assert "constant" in reason


def test_so_is_an_input_that_sizes_follow_from() -> None:
    text = "(float[n,4] x, int64[1] l) => (float[m] y) { y = Reshape(x, l) }"
    assert not reasons(text, given={"l"})


def test_what_is_drawn_or_depends_on_values_is_no_constant() -> None:
    model = parsed(
        "(float[n] x) => (float[m] y) { s = Shape(x) r = RandomUniformLike(s) y = Cast<to = 1>(r) }"
    )
    fixed = fixed_values(model.graph)
    assert {value.name for value in fixed} == {"s"}


def test_a_device_without_a_list_claims_nothing() -> None:
    model = parsed("(float[2] x) => (float[2] y) { y = Relu(x) }")
    (reason,) = unclaimed(model, "GPU.0").values()
    assert reason == "Relu is not claimed"
    assert not claims_of("NPU").rows


LINE = "Clip | 11 12 13 | f32,f32,f32>f32 i64,i64,i64>i64 | 000 011 | - mode=a | 0 1 2"


def test_a_line_of_the_list_is_read_as_it_was_written() -> None:
    rows = Claims(LINE).rows
    assert written(rows.values()) == LINE
    assert rows.keys() == {("Clip", "f32,f32,f32>f32"), ("Clip", "i64,i64,i64>i64")}
    for row in rows.values():
        assert row.since == {11, 12, 13}
        assert row.ranks == {0, 1, 2}


def test_each_reason_says_what_was_not_tried() -> None:
    claims = Claims("Relu | 14 | f32>f32 | 0 | - | 1 2")
    form = form_of(next(iter(parsed("(float[2] x) => (float[2] y) { y = Relu(x) }").graph)), 17)
    assert claims.why_not(form) is None
    for text, opset, told in (
        ("(float[2] x) => (float[2] y) { y = Relu(x) }", 13, "of set 13"),
        ("(int8[2] x) => (int8[2] y) { y = Relu(x) }", 14, "on int8"),
        ("(float x) => (float y) { y = Relu(x) }", 14, "of tensors of 0 axes"),
    ):
        node = next(iter(parsed(text, opset).graph))
        assert claims.why_not(form_of(node, opset)) == f"Relu {told} is not claimed"


def test_constants_between_two_choices_that_were_tried_are_covered() -> None:
    tried = ["000", "011", "110"]
    assert covers(tried, "010")
    assert covers(tried, "011")
    assert not covers(tried, "111")
    assert not covers(["011"], "001")


REFUSED = {
    "float64": ("(double[2] x) => (double[2] y) { y = Neg(x) }", "float64"),
    "a quantisation by a computed scale": (
        "(float[2] x, float s, int8 z) => (int8[2] y) { t = Neg(s) y = QuantizeLinear(x, t, z) }",
        "ties",
    ),
    "constants": (
        "() => (float[2] y) <float[2] s = {3, 4}> { y = PRelu(s, s) }",
        "are constants",
    ),
    "coupled gates": (
        """(float[2,1,3] x, float[1,16,3] w, float[1,16,4] r) => (float[2,1,1,4] y)
        { y = LSTM<hidden_size = 4, input_forget = 1>(x, w, r) }""",
        "forget gates",
    ),
    "norms": ("(float[2] x) => (float[2] y) { y = LpNormalization(x) }", "short vectors"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_limit_excludes_is_not_claimed(name: str) -> None:
    text, why = REFUSED[name]
    assert any(why in reason for reason in reasons(text, 21))


def test_a_layer_with_bodies_is_not_claimed() -> None:
    text = """(bool c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] a) { a = Neg(x) },
                   else_branch = e () => (float[2] b) { b = Abs(x) }> }"""
    (reason,) = reasons(text)
    assert "branches and loops" in reason


@pytest.mark.parametrize("layer", ["Softsign(x)", "Upsample(x, s)"])
def test_what_is_wrong_without_avx_is_refused_there_alone(layer: str) -> None:
    text = f"(float[2,2] x) => (float[2,2] y) <float[2] s = {{1, 1}}> {{ y = {layer} }}"
    assert "without AVX" in reasons(text, 9, capabilities=("FP32", "SSE4"))[0]
    assert not any("AVX" in each for each in reasons(text, 9, capabilities=("FP32",)))


@pytest.mark.parametrize(
    "text",
    [
        "(int64 a) => (float[1,0] y) <float[1,0] c = {}> { y = CumSum(c, a) }",
        "(float[2,0] x) => (float[2,0] y) <float[2,0] c = {}> { y = Add(x, c) }",
        "(float[2,3] x) => (float[2,3] y) <float[2,0] c = {}> { y = Concat<axis=1>(x, c) }",
    ],
)
def test_no_layer_reads_a_constant_without_elements(text: str) -> None:
    """OpenVINO takes one for a scalar, and ended the process at the sum."""
    assert [why for why in reasons(text, given={"a"}) if "without elements are not claimed" in why]


def test_lists_of_axes_and_of_sizes_and_the_crop_of_a_resize_may_be_empty() -> None:
    text = """(float[1] x, float[1,1,4,4] z) => (float s, float[1,1,8,8] y)
        <int64[0] none = {}, float[0] crop = {}, float[4] twice = {1,1,2,2}>
        { s = Reshape(x, none) y = Resize<mode="nearest">(z, crop, twice) }"""
    assert not [why for why in reasons(text) if "without elements" in why]
