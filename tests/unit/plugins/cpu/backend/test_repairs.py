"""What ONNX Runtime computes otherwise than ONNX says is right on the CPU device."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.testing.case import network_of, parse
from headrace.testing.infer_request import infer_once


def run(plugin: Plugin, given: str | onnx.ModelProto, *inputs: Any, opset: int = 25) -> list[Any]:
    network = network_of(given, opset=opset)
    config = {"DISABLE_TRANSFORMATIONS": "YES"}
    return [*infer_once(plugin, network, *inputs, config=config).values()]


@pytest.mark.parametrize("layer", ["Cast", "CastLike"])
@pytest.mark.parametrize("target", ["int4", "uint4", "int2", "uint2"])
def test_a_float_is_truncated_to_an_integer_of_few_bits(
    plugin: Plugin, target: str, layer: str
) -> None:
    code = onnx.TensorProto.DataType.Value(target.upper())
    dtype = onnx.helper.tensor_dtype_to_np_dtype(code)
    for word in ("float", "double", "float16", "bfloat16", "float8e5m2"):
        source = onnx.TensorProto.DataType.Value("FLOAT" if word == "float" else word.upper())
        x = np.array([0.5, 0.75, 1.5, 1.75, -0.5], np.float32)
        x = x.astype(onnx.helper.tensor_dtype_to_np_dtype(source))
        if layer == "Cast":
            text = f"g ({word}[n] x) => ({target}[n] y) {{ y = Cast<to={code}>(x) }}"
            (y,) = run(plugin, text, x)
        else:
            text = f"g ({word}[n] x, {target}[m] z) => ({target}[n] y) {{ y = CastLike(x, z) }}"
            (y,) = run(plugin, text, x, np.zeros(1, dtype))
        assert y.dtype == dtype
        assert y.astype(np.int8).tolist() == [0, 0, 1, 1, 0]


def test_a_negative_zero_of_eight_bits_is_false(plugin: Plugin) -> None:
    x = np.array([0.0, -0.0, 1.0]).astype(ml_dtypes.float8_e4m3fn)
    (y,) = run(plugin, "g (float8e4m3fn[n] x) => (bool[n] y) { y = Cast<to=9>(x) }", x)
    assert y.tolist() == [False, False, True]


@pytest.mark.parametrize(("target", "largest"), [("float8e4m3fn", 448), ("float8e5m2", 57344)])
def test_without_saturation_a_number_beyond_the_largest_becomes_what_infinity_does(
    plugin: Plugin, target: str, largest: int
) -> None:
    code = onnx.TensorProto.DataType.Value(target.upper())
    text = f"g (float[n] x) => ({target}[n] y) {{ y = Cast<to={code}, saturate=0>(x) }}"
    steps = np.linspace(largest, 2 * largest, 257, dtype=np.float32)
    x = np.concatenate([steps, -steps, [np.inf, -np.inf]]).astype(np.float32)
    (y,) = run(plugin, text, x)
    expected = x.astype(y.dtype).astype(np.float32)
    np.testing.assert_array_equal(y.astype(np.float32), expected)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("source", ["float", "double", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("target", "tie"),
    [
        ("float8e4m3fn", 464),
        ("float8e4m3fnuz", 248),
        ("float8e5m2", 61440),
        ("float8e5m2fnuz", 61440),
    ],
)
def test_a_number_at_the_end_of_a_type_is_rounded_as_by_onnx(
    plugin: Plugin, target: str, tie: int, source: str, saturate: int
) -> None:
    code = onnx.TensorProto.DataType.Value(target.upper())
    text = f"g ({source}[n] x) => ({target}[n] y) {{ y = Cast<to={code}, saturate={saturate}>(x) }}"
    kind = "FLOAT" if source == "float" else source.upper()
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(kind))
    end = np.array(tie, dtype)
    around = [np.nextafter(end, np.array(0, dtype)), end, np.nextafter(end, np.array(65000, dtype))]
    x = np.array([*around, *(-each for each in around), np.inf, -np.inf, np.nan], dtype)
    (y,) = run(plugin, text, x)
    (expected,) = ReferenceEvaluator(parse(text)).run(None, {"x": x})
    np.testing.assert_array_equal(y.astype(np.float32), np.asarray(expected, np.float32))


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("number", [0.0, 0.1, 3e4])
def test_a_row_of_one_number_is_normalised_to_zeros(
    plugin: Plugin, number: float, opset: int
) -> None:
    text = "g (float[a,b,c,d] x) => (float[a,b,c,d] y) { y = MeanVarianceNormalization(x) }"
    (y,) = run(plugin, text, np.full((3, 2, 5, 7), number, np.float32), opset=opset)
    np.testing.assert_allclose(y, 0, atol=1e-6)


def test_rows_are_normalised_over_the_axes_that_are_given(plugin: Plugin) -> None:
    text = "g (float16[a,b] x) => (float16[a,b] y) { y = MeanVarianceNormalization<axes=[-1]>(x) }"
    (y,) = run(plugin, text, np.array([[1, 3], [-8, 0]], np.float16))
    assert y.tolist() == [[-1, 1], [-1, 1]]


@pytest.mark.parametrize("rank", ["a,b,c", ""])
@pytest.mark.parametrize("layer", ["ReduceMax", "ReduceSum", "ReduceL1", "ReduceLogSumExp"])
def test_an_axis_counted_from_the_last_is_reduced_where_there_are_no_elements(
    plugin: Plugin, layer: str, rank: str
) -> None:
    model = f"g (float[{rank}] x, int64[n] axes) => (float y) {{ y = {layer}(x, axes) }}"
    if not rank:
        model = model.replace("float[]", "float[a,b,c]")
    (y,) = run(plugin, model, np.zeros((3, 2, 0), np.float32), np.array([-2]), opset=20)
    assert y.shape == (3, 1, 0)


def test_no_axes_are_squeezed_where_none_are_named(plugin: Plugin) -> None:
    text = "g (float[a,b] x) => (float y) <int64[0] axes = {}> { y = Squeeze(x, axes) }"
    (y,) = run(plugin, text, np.zeros((1, 3), np.float32))
    assert y.shape == (1, 3)


def test_an_empty_text_is_one_part_where_a_delimiter_is_given(plugin: Plugin) -> None:
    text = """g (string[n] x) => (string[n,m] y, int64[n] count) {
        y, count = StringSplit<delimiter=",">(x)
    }"""
    for given, parts in (
        ([""], [[""]]),
        (["", ""], [[""], [""]]),
        (["a,b", ""], [["a", "b"], ["", ""]]),
    ):
        y, count = run(plugin, text, np.array(given, object))
        assert y.tolist() == parts
        assert count.tolist() == [len(each.split(",")) for each in given]
    y, count = run(plugin, text, np.zeros(0, object))
    assert (y.shape, count.shape) == ((0, 0), (0,))


_LARGEST = (2**31 - 1, 2**63 - 1)


@pytest.mark.parametrize("given", ["ends", "ends, steps", "starts", "starts, ends, steps"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_largest_end_is_beyond_the_last_element_in_both_directions(
    plugin: Plugin, dtype: Any, given: str
) -> None:
    x, kind = np.arange(5, dtype=np.float32), np.dtype(dtype).name
    bounds = [-1, 0, 3, 5, -6, *(each for each in _LARGEST if each <= np.iinfo(dtype).max)]
    for end, step in product(bounds, (1, 2, -1, -2)):
        values = {"starts": -1 if step < 0 else 0, "ends": end, "axes": 0, "steps": step}
        arrays = {name: np.array([value], dtype) for name, value in values.items()}
        constants = [name for name in arrays if name not in given]
        ports = "".join(f", {kind}[1] {name}" for name in arrays if name in given)
        text = ", ".join(f"{kind}[1] {name} = {{{values[name]}}}" for name in constants)
        model = f"g (float[n] x{ports}) => (float[m] y) <{text}> "
        model += "{ y = Slice(x, starts, ends, axes, steps) }"
        (y,) = run(plugin, model, x, *(arrays[name] for name in arrays if name in given))
        assert y.tolist() == x[values["starts"] : end : step].tolist()


def test_fractions_of_indices_are_cut(plugin: Plugin) -> None:
    text = "g (float[n] x) => (float[n, 3] y) <float d = {3}, float[2] v = {0, 1}> "
    x = np.array([0.9, -0.5, 2, 1.04, -1.7], np.float32)
    (y,) = run(plugin, text + "{ y = OneHot(x, d, v) }", x)
    assert y.tolist() == np.eye(3)[[0, 0, 2, 1, -1]].tolist()


def test_an_end_that_needs_no_repair_stays_as_it_is(plugin: Plugin) -> None:
    text = "g (float[n] x) => (float[m] y) <int64[1] s = {-1}, int64[1] e = {-6}, int64[1] a = {0}>"
    model = parse(text + "{ y = Slice(x, s, e, a, s) }")
    compiled = plugin.load_network(Load(network_of(model)))
    assert [node.op_type for node in compiled.network.nodes()] == ["Slice"]
    compiled.close()


@pytest.mark.parametrize(
    ("attributes", "source", "target", "given", "found"),
    [
        ('keys_strings=["a","b","a"], values_int64s=[1,2,3]', "string", "int64", "a", 3),
        ("keys_int64s=[7,7,8], values_floats=[1.0,2.0,3.0]", "int64", "float", 7, 2),
        ('keys_floats=[0.0,-0.0], values_strings=["x","y"]', "float", "string", 0, "y"),
        (
            'keys_tensor=string[2] k {"a","a"}, values_tensor=int16[2] v {4,5}, '
            "default_tensor=int16[1] d {0}",
            "string",
            "int16",
            "a",
            5,
        ),
        (
            "keys_tensor=double[3] k {1,2,1}, values_tensor=double[3] v {4,5,6}, "
            "default_tensor=double[1] d {0}",
            "double",
            "double",
            1,
            6,
        ),
    ],
)
def test_the_last_of_equal_keys_counts(
    plugin: Plugin, attributes: str, source: str, target: str, given: Any, found: Any
) -> None:
    text = (
        f"g ({source}[n] x) => ({target}[n] y) {{ y = ai.onnx.ml.LabelEncoder<{attributes}>(x) }}"
    )
    model = parse(text)
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 4))
    kind = object if source == "string" else np.dtype(source if source != "float" else "float32")
    (y,) = run(plugin, model, np.array([given], kind))
    assert y.tolist() == [found]


def test_not_a_number_is_one_key(plugin: Plugin) -> None:
    model = parse("g (float[n] x) => (int64[n] y) { y = ai.onnx.ml.LabelEncoder(x) }")
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 4))
    model.graph.node[0].attribute.extend(
        onnx.helper.make_attribute(name, values)
        for name, values in (("keys_floats", [np.nan, 1.0, np.nan]), ("values_int64s", [4, 5, 6]))
    )
    (y,) = run(plugin, model, np.array([1, np.nan], np.float32))
    assert y.tolist() == [5, 6]


def test_a_repaired_layer_is_still_one_to_whoever_asks(plugin: Plugin) -> None:
    model = parse("""g (float[a,b,c,d] x) => (int4[a,b,c,d] y) {
        [norm] n = MeanVarianceNormalization(x)
        [narrow] y = Cast<to=22>(n)
    }""")
    query = plugin.query_network(network_of(model), {})
    assert query.supported_layers == {"norm": "CPU", "narrow": "CPU"}


@pytest.mark.parametrize("locale", ["", ', locale = "en_US"', ', locale = "en_US.UTF-8"'])
def test_text_changes_case_on_a_machine_without_the_usual_locale(
    plugin: Plugin, locale: str
) -> None:
    layer = f'StringNormalizer <case_change_action = "LOWER"{locale}>'
    x = np.array(["Ä Éa", "ΓΔ"], object)
    (y,) = run(plugin, f"g (string[n] x) => (string[m] y) {{ y = {layer} (x) }}", x)
    assert y.tolist() == ["ä éa", "γδ"]
