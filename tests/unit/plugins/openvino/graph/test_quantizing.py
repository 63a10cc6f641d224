"""Quantised weights are multiplied by the right elements of their scales.

OpenVINO alone takes some scales for others, which is tested too, so that a rule without which
nothing is wrong any more is found out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.plugins.openvino.compiler import Compiler
from headrace.plugins.openvino.library import openvino
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest
from tests.support.openvino_alone import alone

ANY = np.random.default_rng(1)
SIGNED = ANY.integers(-50, 50, (32, 8)).astype(np.int8)
UNSIGNED = ANY.integers(0, 200, (32, 8)).astype(np.uint8)
SCALES = ANY.uniform(0.01, 2, (32, 8)).astype(np.float32)
WEIGHTS: Mapping[str, Any] = {
    "w": SIGNED,
    "v": SIGNED.T.copy(),
    "u": UNSIGNED,
    "blocks": SIGNED.reshape(4, 8, 8),
    "matrices": SIGNED.reshape(2, 16, 8),
    "windows": SIGNED.T.reshape(8, 32, 1, 1).copy(),
    "rows": SCALES[:, 0],
    "all_rows": SCALES[:, :1],
    "columns": SCALES[0],
    "each": SCALES,
    "block_scales": SCALES[:4],
    "first_scales": SCALES[:4, :1].reshape(4, 1, 1),
    "one": np.float32(0.1),
    "zeros": UNSIGNED[:, 0].copy(),
    "shape": np.array([32, 8]),
    "middle": np.uint8(128),
}
PRODUCT = "(float[B,S,32] x) => (float[L,M,8] y)"
MATRIX = "(float[S,32] x) => (float[M,8] y)"
FIRST = "(float[32,S] x) => (float[8,M] y)"
MATRICES = "(float[2,S,16] x) => (float[2,M,8] y)"
IMAGES = "(float[B,32,S,1] x) => (float[D,8,M,N] y)"
TABLE = "(int64[S] x) => (float[M,N] y)"
QUANTISED = "q = QuantizeLinear(x, one, middle) p = DequantizeLinear(q, one, middle)"
BY_ROWS = f"{PRODUCT} {{ d = DequantizeLinear<axis = 0>(w, rows) y = MatMul(x, d) }}"
BY_COLUMNS = f"{PRODUCT} {{ d = DequantizeLinear<axis = 1>(w, columns) y = MatMul(x, d) }}"
CONVOLVED = f"""{IMAGES} {{ {QUANTISED}
    d = DequantizeLinear<axis = 0>(windows, columns) y = Conv(p, d) }}"""
FORMS = {
    "rows": BY_ROWS,
    "columns": BY_COLUMNS,
    "one": f"{PRODUCT} {{ d = DequantizeLinear(w, one) y = MatMul(x, d) }}",
    "blocks": f"{PRODUCT} {{ d = DequantizeLinear<axis = 0, block_size = 8>(w, block_scales)"
    " y = MatMul(x, d) }",
    "first_of_blocks": f"{PRODUCT} {{ c = Cast<to = 1>(blocks) d = Mul(c, first_scales)"
    " e = Reshape(d, shape) y = MatMul(x, e) }",
    "product": f"{PRODUCT} {{ c = Cast<to = 1>(w) d = Mul(c, all_rows) y = MatMul(x, d) }}",
    "product_of_each": f"{PRODUCT} {{ c = Cast<to = 1>(w) d = Mul(c, each) y = MatMul(x, d) }}",
    "twice": f"{PRODUCT} {{ c = Cast<to = 1>(w) d = Mul(c, all_rows) e = Mul(d, columns)"
    " y = MatMul(x, e) }",
    "zeros": f"{PRODUCT} {{ d = DequantizeLinear<axis = 0>(u, rows, zeros) y = MatMul(x, d) }}",
    "zeros_alone": f"{MATRIX} {{ c = Cast<to = 1>(u) b = Sub(c, all_rows) d = Mul(b, one)"
    " y = MatMul(x, d) }",
    "transposed": f"{PRODUCT} {{ d = DequantizeLinear<axis = 1>(v, rows)"
    " e = Transpose<perm = [1, 0]>(d) y = MatMul(x, e) }",
    "gemm": f"{MATRIX} {{ d = DequantizeLinear<axis = 0>(w, rows) y = Gemm(x, d) }}",
    "gemm_transposed": f"{MATRIX} {{ d = DequantizeLinear<axis = 1>(v, rows)"
    " y = Gemm<transB = 1>(x, d) }",
    "first": f"{FIRST} {{ d = DequantizeLinear<axis = 1>(v, rows) y = MatMul(d, x) }}",
    "first_columns": f"{FIRST} {{ d = DequantizeLinear<axis = 0>(v, columns) y = MatMul(d, x) }}",
    "first_one": f"{FIRST} {{ d = DequantizeLinear(v, one) y = MatMul(d, x) }}",
    "matrices": f"{MATRICES} {{ c = Cast<to = 1>(matrices) d = Mul(c, columns) y = MatMul(x, d) }}",
    "matrices_one": f"{MATRICES} {{ c = Cast<to = 1>(matrices) d = Mul(c, one) y = MatMul(x, d) }}",
    "convolution": f"{IMAGES} {{ d = DequantizeLinear<axis = 0>(windows, columns)"
    " y = Conv(x, d) }",
    "convolution_rows": f"{IMAGES} {{ d = DequantizeLinear<axis = 1>(windows, rows)"
    " y = Conv(x, d) }",
    "convolution_one": f"{IMAGES} {{ d = DequantizeLinear(windows, one) y = Conv(x, d) }}",
    "quantised": CONVOLVED,
    "quantised_rows": f"{IMAGES} {{ {QUANTISED} d = DequantizeLinear<axis = 1>(windows, rows)"
    " y = Conv(p, d) }",
    "table_rows": f"{TABLE} {{ d = DequantizeLinear<axis = 0>(w, rows) y = Gather(d, x) }}",
    "table_columns": f"{TABLE} {{ d = DequantizeLinear<axis = 1>(w, columns) y = Gather(d, x) }}",
    "table_across": f"{TABLE} {{ d = DequantizeLinear<axis = 1>(v, rows)"
    " y = Gather<axis = 1>(d, x) }",
}


def case(form: str) -> Case:
    used = form.replace("(", " ").replace(")", " ").replace(",", " ").split()
    return Case("g", parse(f"g {form}", {k: WEIGHTS[k] for k in WEIGHTS if k in used}), {})


def data(form: str, rows: int) -> Any:
    if "int64[S]" in form:
        return ANY.integers(0, 32, rows)
    sizes = form[form.index("[") + 1 : form.index("]")].split(",")
    shape = [{"B": 1, "S": rows}.get(size) or int(size) for size in sizes]
    return ANY.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", FORMS)
def test_weights_are_multiplied_by_their_scales(plugin: Plugin, name: str) -> None:
    form = FORMS[name]
    made = case(form)
    request = InferRequest(plugin.load_network(Load(made.network)))
    for rows in (1, 3, 4, 5, 16):
        feed = {"x": data(form, rows)}
        right, found = made.expected(feed)["y"], np.asarray(request.infer(feed)["y"])
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5 * np.abs(right).max())


def test_openvino_alone_takes_the_first_scale_for_those_of_all_rows() -> None:
    made = case(BY_ROWS)
    feed = {"x": data(BY_ROWS, 1)}
    assert alone(made.model)(feed)[0] != pytest.approx(made.expected(feed)["y"], rel=1e-2)


READERS = {
    "rows": ("FullyConnected", False),
    "columns": ("FullyConnected", True),
    "quantised": ("Convolution", False),
    "table_rows": ("Gather", True),
    "table_columns": ("Gather", False),
}


@pytest.mark.parametrize("name", READERS)
def test_weights_stay_compressed_where_their_scales_are_read_right(
    compiler: Compiler, name: str
) -> None:
    kind, compressed = READERS[name]
    network = case(FORMS[name]).network
    compiled = compiler.compile(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).model
    (reader,) = (
        each
        for each in compiled.get_runtime_model().get_ops()
        if each.get_rt_info()["layerType"].astype(str) == kind
    )
    types = [value.get_element_type() for value in reader.input_values()[:2]]
    assert (openvino.Type.i8 in types) == compressed


ROWS = "float[N,16] x"
PIXELS = "float[N,4,6,6] x"
DATA = "q = QuantizeLinear(x, scale, zero) d = DequantizeLinear(q, scale, zero)"
AGAIN = "r = QuantizeLinear(t, scale, zero) y = DequantizeLinear(r, scale, zero)"
LAYERS = {
    "product": (ROWS, "int8[16,4] w", f"{DATA} m = DequantizeLinear(w, scale) y = MatMul(d, m)"),
    "two_readers": (
        PIXELS,
        "int8[4,4,3,3] w",
        f"{DATA} m = DequantizeLinear(w, scale) t = Conv<pads = [1, 1, 1, 1]>(d, m)"
        " r = QuantizeLinear(t, scale, zero) e = DequantizeLinear(r, scale, zero)"
        " u = Conv<pads = [1, 1, 1, 1]>(e, m) y = Add(t, u)",
    ),
    "pads": (
        PIXELS,
        "",
        f"{DATA} y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1],"
        " count_include_pad = 1>(d)",
    ),
    "product_of_integers": (
        ROWS,
        "int8[16,4] w",
        "q = QuantizeLinear(x, scale, far)"
        " r = QLinearMatMul(q, scale, far, w, scale, none, scale, far)"
        " y = DequantizeLinear(r, scale, far)",
    ),
    "channels": (PIXELS, "float[4,1,1] w", f"{DATA} t = Mul(d, w) {AGAIN}"),
    "channels_clipped": (
        PIXELS,
        "float[4,1,1] w",
        f"{DATA} u = Mul(d, w) t = Clip(u, low, high) {AGAIN}",
    ),
    "channels_moved": (
        PIXELS,
        "float[4,1,1] w",
        f"{DATA} u = Mul(d, w) t = Transpose<perm = [0, 1, 3, 2]>(u) {AGAIN}",
    ),
}
GIVEN: Mapping[str, Any] = {
    "scale": np.float32(0.02),
    "zero": np.uint8(100),
    "far": np.int8(100),
    "none": np.int8(0),
    "low": np.float32(-0.5),
    "high": np.float32(1.2),
    "int8[16,4] w": ANY.choice([-128, 100, 127], (16, 4)).astype(np.int8),
    "int8[4,4,3,3] w": ANY.choice([-128, 100, 127], (4, 4, 3, 3)).astype(np.int8),
    "float[4,1,1] w": np.array([0.5, 2, 1, -1], np.float32).reshape(4, 1, 1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_quantised_layer_gives_what_its_floats_give(plugin: Plugin, name: str) -> None:
    taken, weights, body = LAYERS[name]
    used = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    given = {key: value for key, value in GIVEN.items() if key in used}
    if weights:
        given["w"] = GIVEN[weights]
    ranks = "A,B,C,D" if taken is PIXELS else "A,B"
    made = Case("g", parse(f"g ({taken}) => (float[{ranks}] y) {{ {body} }}", given), {})
    request = InferRequest(plugin.load_network(Load(made.network)))
    for rows in (1, 3):
        shape = (rows, 4, 6, 6) if taken is PIXELS else (rows, 16)
        feed = {"x": ANY.uniform(-2, 3, shape).astype(np.float32)}
        right, found = made.expected(feed)["y"], np.asarray(request.infer(feed)["y"])
        assert np.abs(found - right).max() < 0.06  # a tie, and a weight of 2.5
