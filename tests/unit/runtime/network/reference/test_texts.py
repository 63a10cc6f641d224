"""Bounds on texts: nothing that a request says holds the interpreter for long."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.reference import texts
from headrace.runtime.network.reference.evaluator import CorrectedEvaluator

MANY = texts.MOST_TEXTS
LONG = "a" * (texts.MOST_CHARACTERS // 2 + 1)
TOO_MANY = "too many for one layer"


def run(text: str, **inputs: Any) -> list[Any]:
    header = '<ir_version: 8, opset_import: ["": 20, "ai.onnx.ml": 3]>'
    return list(CorrectedEvaluator(parse_model(header + text)).run(None, inputs))


def layer(call: str, inputs: str, output: str = "string y") -> str:
    return f"g ({inputs}) => ({output}) {{ y = {call} }}"


def column(count: int, name: str = "a") -> Any:
    return np.array([f"{name}{each}" for each in range(count)], object)


def whole(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


GROWING = {
    "ArrayFeatureExtractor": (
        layer("ai.onnx.ml.ArrayFeatureExtractor(x, i)", "string[1, 1] x, int64[n] i"),
        {"x": column(1).reshape(1, 1), "i": np.zeros(MANY + 1, np.int64)},
    ),
    "CenterCropPad": (
        layer("CenterCropPad(x, s)", "string[1] x, int64[1] s"),
        {"x": column(1), "s": whole(MANY + 1)},
    ),
    "Equal": (
        layer("Equal(x, z)", "string[n, 1] x, string[m] z", "bool y"),
        {"x": column(1000).reshape(-1, 1), "z": column(1000)},
    ),
    "Expand": (
        layer("Expand(x, s)", "string[1] x, int64[2] s"),
        {"x": column(1), "s": whole(1 << 40, 1 << 40)},
    ),
    "Gather": (
        layer("Gather(x, i)", "string[1] x, int64[n] i"),
        {"x": column(1), "i": np.zeros(MANY + 1, np.int64)},
    ),
    "GatherElements": (
        layer("GatherElements(x, i)", "string[1] x, int64[n] i"),
        {"x": column(1), "i": np.zeros(MANY + 1, np.int64)},
    ),
    "GatherND": (
        layer("GatherND(x, i)", "string[2, m] x, int64[n, 1] i"),
        {"x": column(2000).reshape(2, 1000), "i": np.zeros((1000, 1), np.int64)},
    ),
    "Pad": (
        layer("Pad(x, p, v)", "string[1] x, int64[2] p, string v"),
        {"x": column(1), "p": whole(0, 1 << 60), "v": np.array("", object)},
    ),
    "StringConcat": (
        layer("StringConcat(x, z)", "string[n, 1] x, string[m] z"),
        {"x": column(1000).reshape(-1, 1), "z": column(1000)},
    ),
    "StringSplit": (
        layer("StringSplit(x)", "string[n] x", "string y, int64 c").replace("y =", "y, c ="),
        {"x": np.array(["a" * 10_000, *["b"] * 500], object)},
    ),
    "Tile": (
        layer("Tile(x, n)", "string[k] x, int64[1] n"),
        {"x": column(10), "n": whole(1 << 60)},
    ),
    "Where": (
        layer("Where(c, x, z)", "bool[1] c, string[n, 1] x, string[m] z"),
        {"c": np.array([True]), "x": column(1000).reshape(-1, 1), "z": column(1000)},
    ),
}


@pytest.mark.parametrize("operator", GROWING)
def test_a_layer_that_would_make_too_many_texts_is_refused_before_it_does(operator: str) -> None:
    with pytest.raises(InvalidArgument, match=TOO_MANY):
        run(GROWING[operator][0], **GROWING[operator][1])


def test_every_operator_that_makes_more_texts_than_it_takes_is_tried_here() -> None:
    assert {*GROWING} == {*texts.GROWING}


KEEPING = frozenset(
    {
        "Cast",
        "CastLike",
        "CastMap",
        "CategoryMapper",
        "Compress",
        "Concat",
        "ConcatFromSequence",
        "Constant",
        "DepthToSpace",
        "DictVectorizer",
        "Flatten",
        "Identity",
        "If",
        "LabelEncoder",
        "Loop",
        "NonZero",
        "OneHotEncoder",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "RandomNormalLike",
        "RandomUniformLike",
        "RegexFullMatch",
        "Reshape",
        "ReverseSequence",
        "Scan",
        "Scatter",
        "ScatterElements",
        "ScatterND",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SequenceMap",
        "Shape",
        "Size",
        "Slice",
        "SpaceToDepth",
        "Split",
        "SplitToSequence",
        "Squeeze",
        "StringNormalizer",
        "TensorScatter",
        "TfIdfVectorizer",
        "Transpose",
        "Trilu",
        "Unique",
        "Unsqueeze",
        "ZipMap",
        "LinearClassifier",
        "SVMClassifier",
        "TreeEnsembleClassifier",
    }
)
"""Operators that make no more texts than they take, or that look themselves how many they make."""


def test_every_operator_that_onnx_lets_take_texts_is_known() -> None:
    known = {*texts.GROWING, *KEEPING, *texts.REFUSING}
    taking = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        types = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
        allowed = (each for port in schema.inputs for each in types.get(port.type_str, ()))
        if schema.domain in ("", "ai.onnx.ml") and any("string" in each for each in allowed):
            taking.add(schema.name)
    assert taking <= known


def test_an_operator_that_is_not_known_to_take_texts_refuses_them() -> None:
    text = layer("Resize(x, , s)", "string[1] x, float[1] s")
    with pytest.raises(NotImplementedError, match="Resize does not take texts here"):
        run(text, x=column(1), s=np.array([2], np.float32))


@pytest.mark.parametrize(
    ("call", "inputs", "feeds"),
    [
        ("Identity(x)", "string[n] x", {"x": column(MANY + 1)}),
        ("Identity(x)", "string[n] x", {"x": np.array([LONG, LONG], object)}),
        ("Concat<axis=0>(x, x)", "string[n] x", {"x": column(MANY // 2 + 1)}),
        ("StringConcat(x, x)", "string[n] x", {"x": np.array([LONG], object)}),
        (
            "Pad(x, n, v)",
            "string[k] x, int64[2] n, string v",
            {"x": column(0), "n": whole(0, MANY + 1), "v": np.array("", object)},
        ),
        ("Tile(x, n)", "string[1] x, int64[1] n", {"x": np.array([LONG], object), "n": whole(2)}),
        ("Cast<to=8>(x)", "float[n] x", {"x": np.zeros(MANY + 1, np.float32)}),
        (
            'ai.onnx.ml.LabelEncoder<keys_int64s=[1], values_strings=["a"]>(x)',
            "int64[n] x",
            {"x": np.zeros(MANY + 1, np.int64)},
        ),
        (
            f'ai.onnx.ml.LabelEncoder<keys_int64s=[1], values_strings=["{LONG}"]>(x)',
            "int64[n] x",
            {"x": whole(0, 0)},
        ),
        (
            "SequenceAt(s, p)",
            "seq(string[n]) s, int64 p",
            {"s": [column(MANY // 2 + 1)] * 2, "p": np.array(0)},
        ),
    ],
)
def test_a_layer_takes_and_makes_a_bounded_number_of_texts_and_characters(
    call: str, inputs: str, feeds: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument, match=TOO_MANY):
        run(layer(call, inputs), **feeds)


@pytest.mark.parametrize(
    "texts_of_words", [[" ".join("a" * (MANY + 1))], ["a"] * 1000 + ["a " * 1000]]
)
def test_a_split_into_too_many_parts_is_refused(texts_of_words: list[str]) -> None:
    text = "g (string[n] x) => (string[n, m] y, int64[n] c) { y, c = StringSplit(x) }"
    with pytest.raises(InvalidArgument, match=TOO_MANY):
        run(text, x=np.array(texts_of_words, object))


def test_texts_are_split_as_onnx_says() -> None:
    text = (
        'g (string[n] x) => (string[n, m] y, int64[n] c) { y, c = StringSplit<delimiter="."%s>(x) }'
    )
    x = np.array(["a.b.c", "", "d"], object)
    y, counts = run(text % "", x=x)
    assert y.tolist() == [["a", "b", "c"], ["", "", ""], ["d", "", ""]]
    assert counts.tolist() == [3, 1, 1]
    y, counts = run(text % ", maxsplit=1", x=x)
    assert y.tolist() == [["a", "b.c"], ["", ""], ["d", ""]]
    y, counts = run(text % "", x=x[:0])
    assert y.shape == (0, 0)
    assert counts.shape == (0,)


def test_texts_are_joined_and_compared_with_broadcasting() -> None:
    x, z = np.array([["a"], ["b"]], object), np.array(["a", "é"], object)
    inputs = "string[n, 1] x, string[m] z"
    (y,) = run(layer("StringConcat(x, z)", inputs), x=x, z=z)
    assert y.tolist() == [["aa", "aé"], ["ba", "bé"]]
    (y,) = run(layer("Equal(x, z)", inputs, "bool y"), x=x, z=z)
    assert y.tolist() == [[True, False], [False, False]]


def test_many_elements_are_cast_piece_by_piece() -> None:
    numbers = np.arange(40_000, dtype=np.float32).reshape(2, -1)
    text = "g (float[2, n] x) => (string[2, n] s, float[2, n] y)"
    s, y = run(f"{text} {{ s = Cast<to=8>(x) y = Cast<to=1>(s) }}", x=numbers)
    assert s[1, -1] == "39999.0"
    assert (y == numbers).all()


def collecting(operator: str) -> str:
    """Collects the same texts in each of some iterations."""
    body = "y0 = Identity(v) y1 = Identity(v)"
    if operator == "Loop":
        return f"""g (string[n] x, int64 t) => (string[n] last, string[k, n] all) {{
            yes = Constant<value = bool {{1}}>()
            last, all = Loop(t, yes, x) <body = b
                (int64 i, bool go, string[n] v) => (bool more, string[n] y0, string[n] y1)
                {{ more = Identity(go) {body} }}> }}"""
    return f"""g (string[n] x, float[k] t) => (string[n] last, string[k, n] all) {{
        last, all = Scan<num_scan_inputs = 1, body = b
            (string[n] v, float e) => (string[n] y0, string[n] y1) {{ {body} }}>(x, t) }}"""


@pytest.mark.parametrize(("operator", "trips"), [("Loop", np.array(3)), ("Scan", np.ones(3))])
def test_what_iterations_collect_is_bounded_too(operator: str, trips: Any) -> None:
    last, collected = run(collecting(operator), x=column(2), t=trips)
    assert last.tolist() == ["a0", "a1"]
    assert collected.tolist() == [["a0", "a1"]] * 3
    with pytest.raises(InvalidArgument, match=TOO_MANY):
        run(collecting(operator), x=column(MANY // 2), t=trips)


def test_an_attribute_with_too_many_texts_is_refused_beforehand() -> None:
    node = onnx.helper.make_node("Constant", [], ["y"], value_strings=["a"] * (MANY + 1))
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.STRING, [None])
    with pytest.raises(InvalidArgument, match=TOO_MANY):
        CorrectedEvaluator(onnx.helper.make_graph([node], "g", [], [output]), opsets={"": 20})
