"""Rules that guard single inputs of a layer, in the same way for many operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from headrace.plugins.cpu.backend.inserter import constant
from headrace.plugins.cpu.guards.guard_layers import Guard

Rule: TypeAlias = Callable[[ir.Node, Guard], None]


def each(node: ir.Node, indices: Sequence[int], guarded: Callable[[ir.Value], ir.Value]) -> None:
    """Guards the inputs at `indices`, if the node has them."""
    for index in indices:
        value = node.inputs[index] if 0 <= index < len(node.inputs) else None
        if value is not None:
            node.replace_input_with(index, guarded(value))


def not_empty(index: int, free: int | None = None) -> Rule:
    return lambda node, guard: each(node, [index], lambda value: guard.not_empty(value, free))


def scalars(*indices: int) -> Rule:
    """Guards inputs whose first elements the backend reads."""
    return lambda node, guard: each(node, indices, guard.not_empty)


def constants(*indices: int) -> Rule:
    """Guards constants that the backend takes for missing ones if they have no elements."""
    return lambda node, guard: each(
        node, indices, lambda value: value if constant(value) is None else guard.not_empty(value)
    )


def of_rank(least: int, index: int = 0) -> Rule:
    return lambda node, guard: each(node, [index], lambda value: guard.of_rank(value, least))


def of_exact_rank(rank: int, index: int = 0) -> Rule:
    return lambda node, guard: each(node, [index], lambda value: guard.ranked(value, rank))
