"""What HETERO does to a network before it cuts it: it names the types that casts read."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from headrace.plugins.hetero.transformations import name_types_of_casts
from headrace.runtime.intake import naming
from headrace.runtime.network.type_inference import infer_types
from headrace.testing.case import network_of

SCALED = """scaled (float16[2] x) => (float16[2] y) {
    k = Constant <value = float[1] {0.5}> ()
    [scale] c = CastLike <saturate = 0> (k, x)
    y = Mul(x, c)
}"""
IN_A_BODY = """chosen (bool b, float[2] x, float16[2] like) => (float16[2] y) {
    y = If (b) <
        then_branch = g () => (float16[2] t) { [cast] t = CastLike(x, like) },
        else_branch = h () => (float16[2] e) { e = Identity(like) }
    >
}"""
OF_UNKNOWN_TYPE = """unknown (float[2] x) => (float16[2] y) {
    like = headrace.test.Strange(x)
    [cast] y = CastLike(x, like)
}"""
OF_ANOTHER_DOMAIN = """own (float[2] x, float16[2] like) => (float16[2] y) {
    [cast] y = headrace.test.CastLike(x, like)
}"""


def typed(text: str) -> ir.Model:
    model = network_of(text).clone().model
    infer_types(model)
    return model


def named(model: ir.Model, name: str) -> ir.Node:
    (node,) = (each for each in naming.walk(model.graph) if (each.name or "").endswith(name))
    return node


def test_a_cast_to_another_tensors_type_names_the_type_and_reads_that_tensor_no_more() -> None:
    model = typed(SCALED)
    assert name_types_of_casts(model)
    cast = named(model, "scale")
    assert (cast.op_type, [value and value.name for value in cast.inputs]) == ("Cast", ["k"])
    assert cast.attributes.get_int("to") == ir.DataType.FLOAT16
    assert [(node.op_type, at) for node, at in model.graph.inputs[0].uses()] == [("Mul", 0)]


def test_how_it_rounds_stays() -> None:
    model = typed(SCALED)
    name_types_of_casts(model)
    assert named(model, "scale").attributes.get_int("saturate") == 0


def test_a_cast_in_a_body_no_longer_reads_from_around_it() -> None:
    model = typed(IN_A_BODY)
    assert name_types_of_casts(model)
    assert named(model, "cast").attributes.get_int("to") == ir.DataType.FLOAT16
    like = model.graph.inputs[2]
    assert [node.op_type for node, _ in like.uses()] == ["Identity"]


@pytest.mark.parametrize("text", [OF_UNKNOWN_TYPE, OF_ANOTHER_DOMAIN])
def test_without_a_type_or_of_another_domain_it_stays(text: str) -> None:
    model = typed(text)
    assert not name_types_of_casts(model)
    assert named(model, "cast").op_type == "CastLike"


def test_done_twice_it_changes_nothing() -> None:
    model = typed(SCALED)
    name_types_of_casts(model)
    assert not name_types_of_casts(model)
