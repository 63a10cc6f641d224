"""Layers that OPENVINO does not give to OpenVINO, because no comparison of answers would find what
is wrong with them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from headrace.plugins.openvino import limits
from headrace.plugins.openvino.support import known_limits
from headrace.runtime.network.network import Network
from headrace.runtime.network.type_inference import infer_types
from headrace.testing.case import parse

REFUSED = {
    "float64": ("(double[2] x) => (double[2] y) { y = Neg(x) }", "float64"),
    "a transform": (
        "(float[1,8,1] x, int64 a) => (float[1,8,2] y) { y = DFT(x, , a) }",
        "Fourier transforms",
    ),
    "a cast that saturates": (
        "(float[2] x) => (float8e4m3fn[2] y) { y = Cast<to = 17>(x) }",
        "does not saturate",
    ),
    "a quantisation to 16 bits": (
        "(float[2] x, float s, int16 z) => (int16[2] y) { y = QuantizeLinear(x, s, z) }",
        "16 bits",
    ),
    "a quantisation by a computed scale": (
        "(float[2] x, float s, int8 z) => (int8[2] y) { t = Neg(s) y = QuantizeLinear(x, t, z) }",
        "ties",
    ),
    "sums of integers": (
        "(uint8[1,1,2,2] x, uint8[1,1,1,1] w) => (int32[1,1,2,2] y) { y = ConvInteger(x, w) }",
        "too large to be exact",
    ),
    "a scalar that is repeated": (
        "(float x, int64[0] r) => (float y) { y = Tile(x, r) }",
        "ends the process",
    ),
    "constants": (
        "() => (float[2] y) <float[2] x = {1, 2}, float[2] s = {3, 4}> { y = PRelu(x, s) }",
        "are constants",
    ),
}


def reasons(text: str, opset: int = 21) -> list[str]:
    proto = parse(f"f {text}")
    proto.opset_import[0].version = opset
    model = Network.from_bytes(proto.SerializeToString()).model
    infer_types(model)
    return list(known_limits(model).values())


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_reason(name: str) -> None:
    text, why = REFUSED[name]
    assert any(why in reason for reason in reasons(text))


def test_other_layers_are_not() -> None:
    for layer in ("Neg(x)", "Cast<to = 10>(x)", "Softmax(x)", "PRelu(x, x)"):
        assert not reasons(f"(float[2,2] x) => (float16[2,2] y) {{ y = {layer} }}")


def test_a_tensor_of_more_axes_than_openvino_has_is_refused() -> None:
    sizes = ",".join("1" * 33)
    assert (
        "at most 32 axes"
        in reasons(f"(float[{sizes}] x) => (float[{sizes}] y) {{ y = Neg(x) }}")[0]
    )


@pytest.mark.parametrize("operator", ["DynamicQuantizeLSTM", "DynamicQuantizeMatMul"])
def test_onnx_runtimes_operators_that_quantise_are_left_to_it(operator: str) -> None:
    node = ir.Node("com.microsoft", operator, [])
    assert "does not quantise" in (limits.reason(node) or "")
    assert limits.reason(ir.Node("com.microsoft", "FusedMatMul", [])) is None


@pytest.mark.parametrize("op_type", ["Softsign", "Resize", "Upsample", "RoiAlign"])
def test_what_is_wrong_without_avx_is_refused_there_alone(op_type: str) -> None:
    node = ir.Node("", op_type, [])
    assert "without AVX" in (limits.reason(node, ("FP32", "SSE4")) or "")
    assert limits.reason(node, ("FP32",)) is None
    assert limits.reason(ir.Node("", "Relu", []), ("FP32", "SSE4")) is None
