"""Finds layers that give other outputs for the same inputs the next time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import onnx_ir as ir

from headrace.runtime.intake.naming import walk
from headrace.runtime.network.constants import const_tensor

_STANDARD: Final = ("", "ai.onnx", "ai.onnx.ml")
_DRAW: Final = frozenset(
    (
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    )
)
_WORDS: Final = ("Bernoulli", "Dropout", "Multinomial", "Random", "Sampling")
"""Operators of others that draw have such a word in their name."""
_TRAINING_MODE: Final = 2
"""The input of Dropout that says whether it drops anything."""
_NEVER_TRAINS: Final = 7
"""From this operator set on, a Dropout without that input drops nothing."""


def random_layers(model: ir.Model) -> tuple[str, ...]:
    """The names of these layers, those in bodies and functions included.

    A seed makes no difference: it begins a series of numbers, and each run takes the next ones.
    """
    return tuple(node.name or node.op_type for node in _nodes(model) if _is_random(node, model))


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from walk(model.graph)
    for function in model.functions.values():
        yield from walk(function)


def _is_random(node: ir.Node, model: ir.Model) -> bool:
    if node.domain not in _STANDARD:
        return any(word in node.op_type for word in _WORDS)
    if node.op_type != "Dropout":
        return node.op_type in _DRAW
    if len(node.inputs) > _TRAINING_MODE and (mode := node.inputs[_TRAINING_MODE]) is not None:
        constant = None if mode.is_graph_input() else const_tensor(mode)
        return constant is None or bool(constant.numpy().any())
    tested = node.attributes.get("is_test")
    opset = model.opset_imports.get(node.domain) or model.opset_imports.get("") or _NEVER_TRAINS
    return opset < _NEVER_TRAINS and not (tested is not None and tested.as_int())
