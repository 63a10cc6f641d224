"""Products of uint8 and int8 are exact on the CPU device, whatever the processor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.plugins import cpu
from headrace.plugins.cpu.saturation import saturates
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.network.network import Network
from headrace.testing.case import parse
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services

TYPES = (np.uint8, np.int8)


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with services() as offered:
        yield cpu.create_plugin("CPU", offered, {})


def full_range(dtype: Any, *sizes: int) -> Any:
    limits = np.iinfo(dtype)
    made = np.random.default_rng(len(sizes)).integers(limits.min, limits.max + 1, sizes)
    return made.astype(dtype)


def run(plugin: Plugin, text: str, feed: dict[str, Any], constants: dict[str, Any]) -> Any:
    given = Network.from_bytes(parse(text, constants).SerializeToString())
    assert not plugin.query_network(given, {}).unsupported
    compiled = plugin.load_network(Load(given))
    try:
        (found,) = InferRequest(compiled).infer(feed).values()
    finally:
        compiled.close()
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


@pytest.mark.parametrize("has_zero", [True, False])
@pytest.mark.parametrize("layer", ["Conv", "Gemm", "MatMul"])
def test_a_product_of_what_was_quantised_before_is_exact(
    plugin: Plugin, layer: str, has_zero: bool
) -> None:
    image = layer == "Conv"
    sizes = ((1, 16, 9, 9), (8, 16, 3, 3)) if image else ((5, 64), (64, 32))
    a, b = full_range(np.uint8, *sizes[0]), full_range(np.int8, *sizes[1])
    constants = {
        "b": b,
        "s": np.array(1, np.float32),
        "w": np.ones(8 if image else 32, np.float32),
        "t": np.array(4000, np.float32),
        "za": np.array(9, np.uint8),
        "zb": np.zeros(8 if image else 32, np.int8),
        "zy": np.array(100, np.uint8),
    }
    if not has_zero:
        del constants["zb"]
    shape = ",".join(map(str, a.shape))
    text = f"""g (float[{shape}] x) => (float[{"c,d,e,f" if image else "c,d"}] y) {{
        q = QuantizeLinear(x, s, za) d = DequantizeLinear(q, s, za)
        e = DequantizeLinear<axis = {0 if image else 1}>(b, w{", zb" if has_zero else ""})
        m = {layer}(d, e) r = QuantizeLinear(m, t, zy) y = DequantizeLinear(r, t, zy)
    }}"""
    found = run(plugin, text, {"x": a.astype(np.float32) - 9}, constants)
    exact = convolved(a, b, 9, 0) if image else multiplied(a, b, 9, 0)
    assert (found == (np.clip(np.rint(exact / 4000) + 100, 0, 255) - 100) * 4000).all()


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
        compiled = plugin.load_network(Load(Network.from_bytes(model.SerializeToString())))
        notes = compiled.get_metric("NOTES")
        names = list(compiled.network.model.graph.initializers)
        compiled.close()
        assert isinstance(notes, list)
        assert any("would overflow" in each for each in notes) == changed
        assert ("b" in names) != changed
