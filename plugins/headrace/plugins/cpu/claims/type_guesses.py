"""Guesses the types of a layer's inputs that come from an unknown operator.

ONNX's schema of the layer's operator says which types each input may have, and which inputs must
have the same type. The known types of other inputs and of outputs settle some of the unknown types.
For the rest, this module gives the likeliest combinations, to be tried on a backend one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import TypeAlias

import onnx_ir as ir
from onnx import defs

from headrace.runtime.network.type_names import type_of, type_text

Guess: TypeAlias = Mapping[ir.Value, ir.TypeProtocol]
"""A type for each value whose own type is not known."""

MAX_GUESSES = 24

_LIKELY = ("float", "int64", "bool", "string", "int32", "float16", "double", "uint8", "int8")
_ORDER = {name: place for place, name in enumerate(_LIKELY)}


def type_guesses(node: ir.Node, unknown: Sequence[ir.Value], version: int) -> list[Guess]:
    """Types for the `unknown` values that a node takes, likeliest first, at most `MAX_GUESSES`.

    Args:
        version: the version of the node's operator set.
    """
    schema = _schema(node, version)
    if schema is None:
        known = [value.type for value in node.inputs if value is not None]
        likely = [type_of(f"tensor({name})") for name in _LIKELY]
        types = dict.fromkeys(each for each in (*known, *likely) if each is not None)
        return [dict.fromkeys(unknown, each) for each in types]
    formals = dict(_with_formals(node.inputs, schema.inputs))
    settled = {
        formal.type_str: {type_text(value.type)}
        for values, params in ((node.inputs, schema.inputs), (node.outputs, schema.outputs))
        for value, formal in _with_formals(values, params)
        if value.type is not None
    }
    wanted = {value: formals[value].type_str for value in unknown if value in formals}
    names = list(dict.fromkeys(wanted.values()))
    allowed = [_allowed(schema, name, settled) for name in names]
    captured = [value for value in unknown if value not in formals]  # by a body: any type
    likely_type = ir.TensorType(ir.DataType.FLOAT)
    guesses: list[Guess] = []
    for choice in islice(product(*allowed), MAX_GUESSES):
        types_of_names = dict(zip(names, choice, strict=True))
        guess = {value: types_of_names[name] for value, name in wanted.items()}
        guesses.append({**guess, **dict.fromkeys(captured, likely_type)})
    return guesses


def _schema(node: ir.Node, version: int) -> defs.OpSchema | None:
    try:
        return defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return None


def _with_formals(
    values: Sequence[ir.Value | None], formals: Sequence[defs.OpSchema.FormalParameter]
) -> Iterator[tuple[ir.Value, defs.OpSchema.FormalParameter]]:
    """Each value with its declaration. Values of one variadic declaration may differ in type."""
    for index, value in enumerate(values):
        if value is not None and formals:
            yield value, formals[min(index, len(formals) - 1)]


def _allowed(
    schema: defs.OpSchema, name: str, settled: Mapping[str, set[str]]
) -> list[ir.TypeProtocol]:
    """The types that a type variable, or a type itself, stands for, likeliest first."""
    constraints = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    allowed = set(constraints.get(name, [name]))
    texts = settled.get(name, set()) & allowed or allowed  # the declared type may be wrong
    types = (type_of(text) for text in sorted(texts, key=_place))
    return [each for each in types if each is not None]


def _place(text: str) -> tuple[int, int, str]:
    """The place of a type in the order of likelihood: tensors before lists of them."""
    element = text.rpartition("(")[2].rstrip(")")
    return text.count("("), _ORDER.get(element, len(_ORDER)), text
