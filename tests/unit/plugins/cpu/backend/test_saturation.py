"""Products of uint8 and int8 are exact on the CPU device, whatever the processor."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from headrace.plugins.cpu.backend import saturation
from headrace.plugins.cpu.backend.saturation import keeps_int8, move_operands, saturates
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.network.type_inference import infer_types
from headrace.testing.case import network_of, parse
from headrace.testing.infer_request import infer_once

TYPES = (np.uint8, np.int8)


def full_range(dtype: Any, *sizes: int) -> Any:
    limits = np.iinfo(dtype)
    made = np.random.default_rng(len(sizes)).integers(limits.min, limits.max + 1, sizes)
    return made.astype(dtype)


def run(plugin: Plugin, text: str, feed: dict[str, Any], constants: dict[str, Any]) -> Any:
    given = network_of(text, constants)
    assert not plugin.query_network(given, {}).unsupported
    (found,) = infer_once(plugin, given, **feed).values()
    return found


def multiplied(a: Any, b: Any, zero_a: Any, zero_b: Any) -> Any:
    return (a.astype(np.int64) - zero_a) @ (b.astype(np.int64) - zero_b)


def convolved(image: Any, weights: Any, zero_x: Any, zero_w: Any) -> Any:
    windows = np.lib.stride_tricks.sliding_window_view(
        image.astype(np.int64) - zero_x, (3, 3), axis=(2, 3)
    )
    return np.einsum("ncijkl,mckl->nmij", windows, weights.astype(np.int64) - zero_w)


def shared(a: Any, b: Any, is_constant: bool) -> tuple[dict[str, Any], dict[str, Any], str]:
    if is_constant:
        return {"a": a}, {"b": b}, ""
    return {"a": a, "b": b}, {}, f", {b.dtype.name}[{','.join(map(str, b.shape))}] b"


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("one", TYPES)
@pytest.mark.parametrize("other", TYPES)
def test_a_product_of_integers_is_exact(
    plugin: Plugin, one: Any, other: Any, zeros: bool, is_constant: bool
) -> None:
    a, b = full_range(one, 5, 64), full_range(other, 64, 32)
    zero_a, zero_b = one(7), full_range(other, 32)
    feed, constants, ports = shared(a, b, is_constant)
    given = ", za, zb" if zeros else ""
    if zeros:
        constants |= {"za": np.array(zero_a), "zb": zero_b}
    text = (
        f"g ({a.dtype.name}[n,64] a{ports}) => (int32[n,32] y) {{ y = MatMulInteger(a, b{given}) }}"
    )
    found = run(plugin, text, feed, constants)
    expected = multiplied(a, b, int(zero_a) * zeros, zero_b.astype(np.int64) * zeros)
    assert (found == expected).all()


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("one", TYPES)
@pytest.mark.parametrize("other", TYPES)
def test_a_convolution_of_integers_is_exact(
    plugin: Plugin, one: Any, other: Any, is_constant: bool
) -> None:
    image, weights = full_range(one, 1, 16, 9, 9), full_range(other, 8, 16, 3, 3)
    feed, constants, ports = shared(image, weights, is_constant)
    text = (
        f"g ({image.dtype.name}[1,16,9,9] a{ports}) => (int32[1,8,7,7] y) "
        "{ y = ConvInteger(a, b, za) }"
    )
    found = run(plugin, text, feed, {**constants, "za": np.array(one(9))})
    assert (found == convolved(image, weights, 9, 0)).all()


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("layer", ["QLinearConv", "QLinearMatMul"])
def test_a_requantised_product_is_exact(plugin: Plugin, layer: str, is_constant: bool) -> None:
    image = layer == "QLinearConv"
    sizes = ((1, 16, 9, 9), (8, 16, 3, 3)) if image else ((5, 64), (64, 32))
    a, b = full_range(np.uint8, *sizes[0]), full_range(np.int8, *sizes[1])
    feed, constants, ports = shared(a, b, is_constant)
    constants |= {
        "s": np.array(1, np.float32),
        "t": np.array(4000, np.float32),
        "za": np.array(9, np.uint8),
        "zb": np.array(0, np.int8),
        "zy": np.array(100, np.uint8),
    }
    text = (
        f"g (uint8[{','.join(map(str, a.shape))}] a{ports}) => (uint8[...] y) "
        f"{{ y = {layer}(a, s, za, b, s, zb, t, zy) }}"
    ).replace("[...]", "[c,d,e,f]" if image else "[c,d]")
    found = run(plugin, text, feed, constants)
    exact = convolved(a, b, 9, 0) if image else multiplied(a, b, 9, 0)
    assert (found == np.clip(np.rint(exact / 4000) + 100, 0, 255)).all()


@pytest.fixture
def _a_processor_that_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device does on such a processor is right on any."""
    monkeypatch.setattr(saturation, "saturates", lambda: True)


BETWEEN = {
    "nothing": ("Identity(d)", "Identity(e)", "b"),
    "a Reshape of the data": ("Reshape(d, shape)", "Identity(e)", "b"),
    "a Transpose of the weights": ("Identity(d)", "Transpose<perm = {turn}>(e)", "turned"),
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("has_zero", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layer", ["Conv", "Gemm", "MatMul"])
@pytest.mark.usefixtures("_a_processor_that_saturates")
def test_a_product_of_what_was_quantised_before_is_exact(
    plugin: Plugin, layer: str, dtype: Any, has_zero: bool, between: str
) -> None:
    image = layer == "Conv"
    sizes = ((1, 16, 9, 9), (8, 16, 3, 3)) if image else ((5, 64), (64, 32))
    turn = [1, 0, *range(2, len(sizes[1]))]
    a, b = full_range(dtype, *sizes[0]), full_range(np.int8, *sizes[1])
    constants = {
        "b": b,
        "turned": b.transpose(turn),
        "shape": np.array(a.shape),
        "s": np.array(1, np.float32),
        "w": np.array(1, np.float32),
        "t": np.array(4000, np.float32),
        "za": np.array(9, dtype),
        "zb": np.array(0, np.int8),
        "zy": np.array(10, dtype),
    }
    data, weights, stored = (each.format(turn=turn) for each in BETWEEN[between])
    shape = ",".join(map(str, a.shape))
    text = f"""g (float[{shape}] x) => (float[{"c,d,e,f" if image else "c,d"}] y) {{
        q = QuantizeLinear(x, s, za) d = DequantizeLinear(q, s, za)
        e = DequantizeLinear({stored}, w{", zb" if has_zero else ""})
        f = {data} g = {weights}
        m = {layer}(f, g) r = QuantizeLinear(m, t, zy) y = DequantizeLinear(r, t, zy)
    }}"""
    used = {name: value for name, value in constants.items() if re.search(rf"\b{name}\b", text)}
    found = run(plugin, text, {"x": a.astype(np.float32) - 9}, used)
    exact = convolved(a, b, 9, 0) if image else multiplied(a, b, 9, 0)
    limits = np.iinfo(dtype)
    steps = np.clip(np.rint(exact / 4000) + 10, limits.min, limits.max)
    assert (found == (steps - 10) * 4000).all()


QUANTISED = """g (float[5,64] x) => (float[5,32] y) {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    e = DequantizeLinear(b, s)
    y = MatMul(d, e)
}"""


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
def test_int8_stays_int8_only_where_it_would_saturate_as_uint8(dtype: Any, small: bool) -> None:
    weights = full_range(np.int8, 64, 32)
    constants = {
        "b": np.clip(weights, -64, 64) if small else weights,
        "s": np.array(1, np.float32),
        "z": np.array(3, dtype),
    }
    network = network_of(QUANTISED, constants)
    infer_types(network.model)
    assert keeps_int8(network.model) == (dtype is np.int8 and not small)
    assert move_operands(network.model) == (dtype is np.uint8 and not small)


def test_a_product_of_two_computed_values_is_left_to_the_backend() -> None:
    text = """g (float[5,64] x, float[64,32] w) => (float[5,32] y) {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        p = QuantizeLinear(w, s, z) e = DequantizeLinear(p, s, z)
        y = MatMul(d, e)
    }"""
    constants: dict[str, Any] = {"s": np.array(1, np.float32), "z": np.array(3, np.int8)}
    network = network_of(text, constants)
    infer_types(network.model)
    assert not keeps_int8(network.model)
    assert not move_operands(network.model)


DYNAMIC = """g (float[n,64] x) => (float[n,32] y) {
    q, s, z = DynamicQuantizeLinear(x)
    i = MatMulInteger(q, b, z)
    f = Cast<to = 1>(i)
    y = Mul(f, s)
}"""


def test_a_product_of_what_is_quantised_in_the_run_is_exact(plugin: Plugin) -> None:
    x, b = np.random.default_rng(0).random((5, 64), np.float32), full_range(np.int8, 64, 32)
    found = run(plugin, DYNAMIC, {"x": x}, {"b": b})
    scale = x.max() / 255
    exact = np.rint(x / scale).astype(np.int64) @ b.astype(np.int64) * scale
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-3)


def test_weights_that_cannot_saturate_stay_as_they_are(plugin: Plugin) -> None:
    small = np.clip(full_range(np.int8, 64, 32), -64, 64)
    for weights, changed in ((small, False), (full_range(np.int8, 64, 32), saturates())):
        model = parse(DYNAMIC, {"b": weights})
        compiled = plugin.load_network(Load(network_of(model)))
        notes = compiled.get_metric("NOTES")
        names = list(compiled.network.model.graph.initializers)
        compiled.close()
        assert isinstance(notes, list)
        assert any("would overflow" in each for each in notes) == changed
        assert ("b" in names) != changed


FUNCTION = """g (float[5,64] x) => (float[5,32] y) { y = headrace.test.product(x, b, s, z) }
<domain: "headrace.test", opset_import: ["" : 21]> product (x, b, s, z) => (y) {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    e = DequantizeLinear(b, s)
    y = MatMul(d, e)
}"""


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.usefixtures("_a_processor_that_saturates")
def test_a_product_in_a_function_is_exact(plugin: Plugin, dtype: Any) -> None:
    a, b = full_range(dtype, 5, 64), full_range(np.int8, 64, 32)
    constants = {"b": b, "s": np.array(1, np.float32), "z": np.array(3, dtype)}
    found = run(plugin, FUNCTION, {"x": a.astype(np.float32) - 3}, constants)
    assert (found == multiplied(a, b, 3, 0)).all()
