"""Attributes and inputs that calls hand to functions: what the layers there need decides."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from headrace.runtime.errors import InvalidModel
from headrace.testing.case import network_of
from tests.support.model_zoo import chain, function, model, node, value

FLOAT, INT = onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT


def referring(operator: str, name: str, kind: int, inputs: int = 0) -> onnx.FunctionProto:
    """A function "inner" with a layer that refers to the function's attribute "given"."""
    layer = node(operator, ["a"] * inputs, ["t"])
    layer.attribute.add(name=name, ref_attr_name="given", type=kind)
    made = function("inner", [layer, node("Add", ["a", "t"], ["b"])])
    made.attribute.append("given")
    return made


def called(made: onnx.FunctionProto, *, through: bool = False, **given: Any) -> onnx.ModelProto:
    """A call with the attributes `given`, of a function that hands its attribute on if wanted."""
    functions = [made]
    if through:
        call = node("inner", ["a"], ["b"], domain="f")
        call.attribute.add(name="given", ref_attr_name="outer", type=onnx.AttributeProto.UNDEFINED)
        functions.insert(0, function("between", [call]))
        functions[0].attribute.append("outer")
        given = {"outer": given["given"]} if given else {}
    name = functions[0].name
    call = node(name, ["x"], ["y"], domain="f", name="call", **given)
    return model([call], [value("x")], [value("y")], functions=functions, domains=["f"])


def refusal(proto: onnx.ModelProto) -> str:
    with pytest.raises(InvalidModel) as caught:
        network_of(proto)
    return caught.value.message


@pytest.mark.parametrize("through", [False, True])
def test_a_call_may_give_what_a_layer_needs(through: bool) -> None:
    network_of(called(referring("Constant", "value_float", FLOAT), through=through, given=2.0))
    network_of(called(referring("Softmax", "axis", INT, 1), through=through))
    network_of(called(referring("Unknown", "axis", INT, 1), through=through, given="a"))


def test_a_call_may_rely_on_the_default() -> None:
    made = referring("Constant", "value_float", FLOAT)
    made.attribute.pop()
    made.attribute_proto.append(onnx.helper.make_attribute("given", 1.0))
    network_of(called(made))


@pytest.mark.parametrize("through", [False, True])
def test_a_call_does_not_give_another_type(through: bool) -> None:
    name = "outer" if through else "given"
    found = refusal(called(referring("Constant", "value_float", FLOAT), through=through, given=2))
    assert f"attribute {name!r} of layer 'call'" in found
    assert "has the type INT, and the function needs FLOAT" in found
    assert "the function needs INT" in refusal(
        called(referring("Softmax", "axis", INT, 1), given="a")
    )


def test_an_attribute_cannot_be_of_two_types() -> None:
    made = referring("Constant", "value_float", FLOAT)
    made.node.insert(0, node("Softmax", ["a"], ["u"]))
    made.node[0].attribute.add(name="axis", ref_attr_name="given", type=INT)
    assert "needs INT" in refusal(called(made, given=1.0))
    assert "needs FLOAT" in refusal(called(made, given=1))


@pytest.mark.parametrize("through", [False, True])
def test_a_call_does_not_leave_out_what_a_layer_needs(through: bool) -> None:
    name = "outer" if through else "given"
    for operator, attribute, kind, inputs in (
        ("Constant", "value_float", FLOAT, 0),
        ("Cast", "to", INT, 1),
    ):
        made = referring(operator, attribute, kind, inputs)
        found = refusal(called(made, through=through))
        assert f"lacks the attribute {name!r}, which {operator} needs there" in found


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("inputs", [[], [""]])
def test_a_call_does_not_leave_out_an_input_that_a_layer_needs(
    through: bool, inputs: list[str]
) -> None:
    functions = [function("f", [node("Relu", ["a"], ["b"])])]
    if through:
        functions.append(function("g", [node("f", ["a"], ["b"], domain="f")]))
    call = node(functions[-1].name, inputs, ["y"], domain="f")
    proto = model([call], [], [value("y")], functions=functions, domains=["f"])
    assert "lacks the input 'a', which Relu needs there" in refusal(proto)


def test_a_call_may_leave_out_an_input_that_a_layer_does_not_need() -> None:
    clip = function("f", [node("Clip", ["a", "low", "high"], ["b"])])
    clip.input.extend(["low", "high"])
    call = node("f", ["x", "", "x"], ["y"], domain="f")
    network_of(model([call], [value("x")], [value("y")], functions=[clip], domains=["f"]))
    call = node("f", ["x"], ["y"], domain="f")
    network_of(model([call], [value("x")], [value("y")], functions=[clip], domains=["f"]))


def test_a_function_that_nobody_calls_needs_nothing() -> None:
    proto = chain()
    proto.functions.append(referring("Constant", "value_float", FLOAT))
    proto.opset_import.add(domain="f", version=1)
    network_of(proto)
