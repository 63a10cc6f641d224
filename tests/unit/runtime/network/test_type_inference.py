"""What is known of the values between, and how much is spent to know it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from headrace.runtime.intake.naming import walk
from headrace.runtime.network import type_inference
from headrace.runtime.network.network import Network
from headrace.runtime.network.type_inference import infer_types
from headrace.testing.case import network_of, parse
from tests.support.exploding_networks import exploding
from tests.support.model_zoo import branches, function, model, node, value


def inferred(proto: onnx.ModelProto) -> dict[str, str]:
    """Type and shape of each value that a layer gives."""
    it = network_of(proto).model
    infer_types(it)
    return {
        f"{each.name}": f"{each.dtype}{each.shape}"
        for layer in walk(it.graph)
        for each in layer.outputs
    }


def test_types_pass_through_many_layers() -> None:
    lines = " ".join(f"v{at + 1} = Relu(v{at})" for at in range(50))
    text = f"g (float[N,3] v0) => (float[N,3] v50) {{ {lines} }}"
    assert set(inferred(parse(text)).values()) == {"FLOAT[N,3]"}


def test_shapes_are_computed_from_small_constants_wherever_they_are() -> None:
    text = (
        "g (float[2,6] x) => (float[a,b,c] z) <int64[2] given = {3, 4}> "
        "{ y = Reshape(x, given) made = Constant<value_ints = [1, 12, 1]>() w = Reshape(y, made) "
        "z = Identity(w) }"
    )
    found = inferred(parse(text))
    assert found["y"] == "FLOAT[3,4]"
    assert found["w"] == "FLOAT[1,12,1]"


def test_bodies_know_the_types_around_them_and_the_layer_those_of_its_bodies() -> None:
    proto = branches()
    for info in [proto.graph.output[0], *proto.graph.node[1].attribute[0].g.output]:
        info.type.tensor_type.ClearField("shape")
    found = inferred(proto)
    assert found["t"] == found["y"] == "FLOAT[2,3]"


def test_a_scan_reads_slices_and_a_loop_what_it_carries() -> None:
    text = """
    g (float[5,2,3] x, float[2] s) => (float[2] last, float[a,b,c] all, float l)
    {
        last, all = Scan<num_scan_inputs = 1, body = sum (a, b) => (c, d)
            { e = ReduceMax<keepdims = 0>(b) c = Add(a, e) d = Abs(b) }>(s, x)
        ten = Constant<value_int = 10>()
        yes = Constant<value_int = 1>()
        go = Cast<to = 9>(yes)
        l = Loop<body = count (i, k, v) => (m, w)
            { m = Identity(k) w = Add(v, v) }>(ten, go, last)
    }
    """
    found = inferred(parse(text))
    assert found["d"] == "FLOAT[2,3]"
    assert found["m"].startswith("BOOL")
    assert found["w"].startswith("FLOAT")


def test_a_call_of_a_function_knows_what_comes_out() -> None:
    scale = node("Constant", [], ["k"])
    scale.attribute.add(name="value_float", ref_attr_name="factor", type=onnx.AttributeProto.FLOAT)
    own = function("scaled", [scale, node("Mul", ["a", "k"], ["b"])])
    own.attribute.append("factor")
    nodes = [node("scaled", ["x"], ["y"], domain="f", factor=2.0), node("Relu", ["y"], ["z"])]
    found = inferred(model(nodes, [value("x")], [value("z", None)], functions=[own], domains=["f"]))
    assert found == {"y": "FLOAT[2,3]", "z": "FLOAT[2,3]"}


def test_a_layer_that_onnx_refuses_costs_the_others_nothing() -> None:
    text = (
        "g (float[2] x, int64[2] i) => (float[n] z) "
        "{ a = Relu(x) b = Relu(i) c = Concat<axis = 7>(x, x) d = Abs(x) z = Add(a, d) }"
    )
    found = inferred(parse(text))
    assert found["a"] == found["d"] == "FLOAT[2]"


@pytest.mark.parametrize(
    ("layer", "rank"),
    [
        ("STFT (x, one, x, one)", 4),
        ("ConvInteger (u, u)", 3),
        ("ConvTranspose (x, x)", 3),
        ("ReduceSum (x, axes)", 3),
        ("Pad (x, axes)", 3),
        ("CenterCropPad (x, axes)", 3),
        ("HannWindow (one)", 1),
        ("Reshape (x, two)", 2),
        ("ConstantOfShape (two)", 2),
        ("Unsqueeze (x, two)", 5),
        ("Expand (x, two)", 3),
        ("MelWeightMatrix (one, one, one, f, f)", 2),
    ],
)
def test_a_rank_that_is_certain_is_known_where_sizes_are_not(layer: str, rank: int) -> None:
    found = inferred(
        parse(
            "g (float[a,b,c] x, uint8[d,e,f] u, int64[n] axes, int64 one, float f, "
            f"int64[2] two) => (float[m] z) {{ y = {layer} w = Cast<to = 1>(y) z = Abs(w) }}"
        )
    )
    assert len(found["w"].partition("[")[2].split(",")) == rank, found


def test_a_scaler_keeps_the_number_of_axes() -> None:
    proto = parse("g (float[a,b] x) => (float[c,d] z) { y = ai.onnx.ml.Scaler(x) z = Abs(y) }")
    proto.opset_import.add(domain="ai.onnx.ml", version=1)
    assert inferred(proto)["y"] == "FLOAT[None,None]"


def test_a_rank_that_is_not_certain_is_not_claimed() -> None:
    text = (
        "g (float[a,b,c] x, int64[n] axes) => (float[m] z) "
        "{ y = ReduceSum<keepdims = 0>(x, axes) z = Abs(y) }"
    )
    assert inferred(parse(text))["y"] == "FLOATNone"


def test_onnx_is_asked_about_a_few_layers_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    whole = onnx.shape_inference.infer_shapes

    def infer_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
        held = [each for layer in proto.graph.node for each in layer.attribute if each.g.node]
        asked.append(len(proto.graph.node))
        assert not held, "bodies come without their layers"
        assert not proto.functions
        return whole(proto)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", infer_shapes)
    for proto in exploding():
        infer_types(network_of(proto).model)
    assert 0 < max(asked) <= 8


def test_no_rank_is_taken_that_no_tensor_has() -> None:
    def shapes() -> Iterator[ir.Shape]:
        for proto in exploding():
            it = network_of(proto).model
            infer_types(it)
            for layer in walk(it.graph):
                yield from (each.shape for each in layer.outputs if each.shape is not None)

    assert max(shape.rank() for shape in shapes()) <= 64
    assert all(size >= 0 for shape in shapes() for size in shape if isinstance(size, int))


@pytest.mark.long
def test_networks_whose_shapes_explode_are_looked_at_in_bounded_memory() -> None:
    """In a process of 3 GiB of addresses, of which Python and its libraries take the most."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.exploding_networks"],
        cwd=Path(__file__).parents[4],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == len(list(exploding()))


def test_inference_ends_where_functions_call_functions_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type_inference, "_MAX_LAYERS", 100)
    functions = [function("f0", [node("Relu", ["a"], ["b"])])]
    for at in range(1, 12):
        calls = [
            node(f"f{at - 1}", ["a"], ["m"], domain="f"),
            node(f"f{at - 1}", ["m"], ["b"], domain="f"),
        ]
        functions.append(function(f"f{at}", calls))
    nodes = [node("f11", ["x"], ["y"], domain="f")]
    proto = model(nodes, [value("x")], [value("y")], functions=functions, domains=["f"])
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    infer_types(network_of(proto).model)  # of 2,048 calls


def test_a_type_that_there_is_not_is_not_known() -> None:
    text = "g (float[2] x) => (float[a] z) { y = SequenceEmpty<dtype = 77>() z = Relu(x) }"
    found = inferred(parse(text))
    assert found["y"] == "NoneNone"
    assert found["z"].startswith("FLOAT")


def test_what_is_declared_stays() -> None:
    weights = {"w": np.ones(3, np.float32)}
    proto = model([node("Add", ["x", "w"], ["y"])], [value("x", ("N", 3))], [], weights)
    proto.graph.output.append(value("y", ("M", "K")))
    assert inferred(proto) == {"y": "FLOAT[M,K]"}
    assert isinstance(network_of(proto), Network)


def test_two_sizes_that_nobody_named_get_no_name_in_common() -> None:
    lines = " ".join(f"n{at} = NonZero(x{at})" for at in range(20))
    ports = ", ".join(f"float[a,b] x{at}" for at in range(20))
    results = ", ".join(f"n{at}" for at in range(20))
    text = f"g ({ports}) => (int64[c,d] y) {{ {lines} y = Concat<axis = 1>({results}) }}"
    found = inferred(parse(text))
    assert {found[f"n{at}"] for at in range(20)} == {"INT64[2,None]"}


_UNTYPED = """
import onnx, onnx_ir as ir
from onnx import helper
from headrace.runtime.network.type_inference import infer_types

KINDS = onnx.defs.OpSchema.AttrType
VALUES = {
    KINDS.INT: 1, KINDS.INTS: [1], KINDS.FLOAT: 1.0, KINDS.FLOATS: [1.0], KINDS.STRING: "a",
    KINDS.STRINGS: ["a"],
}
for schema in onnx.defs.get_all_schemas_with_history():
    if schema.name == "Constant":
        continue  # without one attribute, it is no network
    needed = {a.name: VALUES[a.type] for a in schema.attributes.values() if a.type in VALUES}
    fewest = {a.name: VALUES[a.type] for a in schema.attributes.values()
              if a.type in VALUES and a.required}
    count = max(schema.min_input, 1)
    for inputs in (["u"] * count, [""] * count, []):
        for attributes in (needed, fewest):
            nodes = [
                helper.make_node("Unknown", [], ["u"], domain="other"),
                helper.make_node(schema.name, inputs, ["y"], domain=schema.domain, **attributes),
            ]
            opsets = {"other": 1, "": 20, schema.domain: schema.since_version}
            model = helper.make_model(
                helper.make_graph(nodes, "g", [], []),
                opset_imports=[helper.make_opsetid(*each) for each in opsets.items()],
            )
            print(schema.domain, schema.name, schema.since_version, inputs, flush=True)
            infer_types(ir.from_proto(model))
print("done")
"""


@pytest.mark.long
def test_no_operator_whose_inputs_have_no_type_ends_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", _UNTYPED], capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1] == "done", ended.stderr[-500:]


def test_an_operator_that_needs_types_gets_them_from_the_layers_before() -> None:
    found = inferred(
        parse(
            "g (float[2,3] x) => (int64[2,3] y) { r = Relu(x) e = EyeLike<dtype = 7>(r) "
            "y = Identity(e) }"
        )
    )
    assert found["e"] == "INT64[2,3]"


LONG = list(range(20_000))
TEXTS = [f"k{at}" for at in LONG]
LONG_LISTS: dict[str, tuple[dict[str, object], str]] = {
    "LabelEncoder": ({"keys_int64s": LONG, "values_strings": TEXTS}, "STRING[N,3]"),
    "CategoryMapper": ({"cats_int64s": LONG, "cats_strings": TEXTS}, "STRING[N,3]"),
    "OneHotEncoder": ({"cats_int64s": LONG}, "FLOAT[N,3,20000]"),
    "TreeEnsembleClassifier": (
        {"nodes_nodeids": LONG, "classlabels_int64s": LONG},
        "FLOAT[N,20000]",
    ),
    "TreeEnsembleRegressor": (
        {"nodes_nodeids": LONG, "nodes_featureids": LONG, "n_targets": 2},
        "FLOAT[N,2]",
    ),
}


def of_long_lists(operator: str) -> onnx.ModelProto:
    lists: Any = LONG_LISTS[operator][0]
    names = ["label", "y"] if operator.endswith("Classifier") else ["y"]
    layer = node(operator, ["x"], names, domain="ai.onnx.ml", **lists)
    inner = node("Identity", ["y"], ["z"])
    proto = model(
        [layer, inner], [value("x", ("N", 3), onnx.TensorProto.INT64)], [value("z", None)]
    )
    proto.opset_import.add(domain="ai.onnx.ml", version=3)
    return proto


@pytest.mark.parametrize("operator", LONG_LISTS)
def test_long_lists_give_the_same_types_as_short_ones(operator: str) -> None:
    assert inferred(of_long_lists(operator))["y"] == LONG_LISTS[operator][1]


@pytest.mark.parametrize("operator", ["LabelEncoder", "TreeEnsembleRegressor"])
def test_onnx_is_not_told_the_whole_of_a_long_list(
    operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    infer = onnx.shape_inference.infer_shapes

    def kept(proto: onnx.ModelProto) -> onnx.ModelProto:
        asked.extend(len(each.ints) + len(each.strings) for each in proto.graph.node[0].attribute)
        return infer(proto)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", kept)
    inferred(of_long_lists(operator))
    assert [each for each in asked if each][:2] == [4096, 4096]


def test_an_output_has_the_only_type_that_its_operator_gives() -> None:
    """onnx infers no type for these outputs."""
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3]>
        g (float[N,4] x) => (float[M,K] y) {
            a = ai.onnx.ml.Scaler<offset = [1.0], scale = [2.0]>(x)
            b = Neg(a)
            c = ai.onnx.ml.Normalizer(b)
            y = Exp(c)
        }"""
    )
    assert {each[:5] for each in inferred(proto).values()} == {"FLOAT"}


def test_onnx_is_not_asked_about_a_size_that_it_cannot_know_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(proto: onnx.ModelProto) -> None:
        raise AssertionError(f"onnx was asked about {proto.graph.node}")

    monkeypatch.setattr(type_inference, "infer", ask)
    text = (
        "g (float[N,C,H,W] x, float[8,3,3,3] w, bool c, int64[n] lengths) => "
        "(float[a,b,c,d] z) { y = Conv(x, w) r = Relu(y) s = Reshape(r, lengths) "
        "z = If(c) <then_branch = t () => (r1) { r1 = Neg(r) },"
        " else_branch = e () => (r2) { r2 = Abs(y) }> }"
    )
    found = inferred(parse(text))
    assert found["y"] == found["r"] == "FLOAT[N,8,None,None]"
    assert found["s"] == "FLOATNone"


def test_an_if_has_the_sizes_that_its_branches_share() -> None:
    text = (
        "g (float[2,3] x, float[2,4] y, bool c) => (float[a,b] z) "
        "{ t = If(c) <then_branch = t () => (r1) { r1 = Neg(x) },"
        " else_branch = e () => (r2) { r2 = Abs(y) }> z = Identity(t) }"
    )
    assert inferred(parse(text))["t"] == "FLOAT[2,None]"


def test_a_recurrent_layer_has_its_hidden_size_whatever_its_input_is() -> None:
    text = (
        "g (float[N,I] a, int64[n] lengths, float[1,20,I] w, float[1,20,5] r) => "
        "(float[a,b,c,d] z) { x = Reshape(a, lengths) "
        "y, h = LSTM<hidden_size = 5>(x, w, r) z = Identity(y) }"
    )
    found = inferred(parse(text))
    assert found["y"] == "FLOAT[None,1,None,5]"
    assert found["h"] == "FLOAT[1,None,5]"
