"""Checks the attributes and inputs that calls hand to functions.

A layer in a function may refer to an attribute of the function or read an input of it, and each
call may give another one, or none. So whether the layer gets what its operator needs shows only at
the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.demands import demands_of, kind_name
from headrace.runtime.intake.inlining import Identifier
from headrace.runtime.intake.naming import walk


@dataclass(slots=True)
class _Needs:
    """What a function's layers need of the function's attributes and inputs.

    Attributes:
        kinds: the types that operators demand of each attribute. No value has two of them.
        required: the attributes without which a layer lacks one, each with the operator that
            requires it.
        inputs: the places of the inputs without which a layer lacks one, each with its operator.
    """

    kinds: dict[str, set[int]] = field(default_factory=dict)
    required: dict[str, str] = field(default_factory=dict)
    inputs: dict[int, str] = field(default_factory=dict)


def check_references(model: ir.Model) -> None:
    """Checks all calls. Each function of `model` has to come after the functions that it calls.

    Raises:
        InvalidModel: a call hands over an attribute of a wrong type, or not an attribute or input
            that is needed.
    """
    if not model.functions:
        return
    needs: dict[Identifier, _Needs] = {}
    for key, function in model.functions.items():
        needs[key] = _needs_of(function, model, needs)
    for node in walk(model.graph):
        _check(node, model, needs)


def _needs_of(function: ir.Function, model: ir.Model, needs: Mapping[Identifier, _Needs]) -> _Needs:
    """Checks the calls in a function, and finds what the function needs of those who call it."""
    own = _Needs()
    places = {value: at for at, value in enumerate(function.inputs)}
    for node in walk(function):
        _check(node, model, needs)
        references = [each for each in node.attributes.values() if each.is_ref()]
        if not references and places.keys().isdisjoint(node.inputs):
            continue
        inner = needs.get(node.op_identifier()) or _needs_of_operator(node, function)
        for at, operator in inner.inputs.items():
            value = node.inputs[at]
            if value in places:
                own.inputs[places[value]] = operator
        for attribute in references:
            name, reference = attribute.name, str(attribute.ref_attr_name)
            if name in inner.kinds:
                own.kinds.setdefault(reference, set()).update(inner.kinds[name])
            if name in inner.required:
                own.required[reference] = inner.required[name]
    return own


def _needs_of_operator(node: ir.Node, function: ir.Function) -> _Needs:
    domain = node.domain
    demands = demands_of(node.op_type, function.opset_imports.get(domain, 1), domain)
    is_constant = (node.op_type, domain) == ("Constant", "")  # each of its attributes is its value
    required = node.attributes if is_constant else demands.required
    return _Needs(
        {name: {kind} for name, kind in demands.kinds.items()},
        dict.fromkeys(required, node.op_type),
        dict.fromkeys(demands.needed_inputs(), node.op_type),
    )


def _check(node: ir.Node, model: ir.Model, needs: Mapping[Identifier, _Needs]) -> None:
    """Checks the attributes and inputs of a layer, if it is a call."""
    key = node.op_identifier()
    if key not in needs:
        return
    given = {**model.functions[key].attributes, **node.attributes}
    label = f"layer {node.name or key[1]!r}, a call of the function {key[1]!r},"
    for name, kinds in needs[key].kinds.items():
        attribute = given.get(name)
        if attribute is None or attribute.type == ir.AttributeType.UNDEFINED:
            continue
        for kind in kinds - {attribute.type}:
            raise InvalidModel(
                f"attribute {name!r} of {label} has the type {kind_name(attribute.type)}, and the "
                f"function needs {kind_name(kind)}",
                field="model",
            )
    for name, operator in needs[key].required.items():
        attribute = given.get(name)
        if attribute is None or not _has_value(attribute):
            raise InvalidModel(
                f"{label} lacks the attribute {name!r}, which {operator} needs there", field="model"
            )
    for at, operator in needs[key].inputs.items():
        if at >= len(node.inputs) or node.inputs[at] is None:
            missing = model.functions[key].inputs[at].name
            raise InvalidModel(
                f"{label} lacks the input {missing!r}, which {operator} needs there", field="model"
            )


def _has_value(attribute: ir.Attr) -> bool:
    return attribute.is_ref() or attribute.value is not None
