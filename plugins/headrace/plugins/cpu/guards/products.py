"""Guards of layers that multiply matrices and add up, alone or fused with a later layer."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from headrace.plugins.cpu.graph.proven_shapes import constant
from headrace.plugins.cpu.guards import inputs
from headrace.plugins.cpu.guards.guard_layers import Guard

_NORMALIZES: Final = frozenset(
    {"LayerNormalization", "Pow", "RMSNormalization", "ReduceMean", "SimplifiedLayerNormalization"}
)
"""Layers that begin a normalisation, which may be written as one layer or as several."""


def added(node: ir.Node, guard: Guard) -> None:
    """Guards the operands of a sum that is normalised. If their dimensions have the same symbols,
    the backend fuses both layers. It believes the symbols, and divides by the number of elements of
    one operand."""
    users = [user for output in node.outputs for user, _ in output.uses()]
    users += [
        later
        for user in users
        if user.op_type == "Add"  # of a bias
        for output in user.outputs
        for later, _ in output.uses()
    ]
    values = [value for value in node.inputs if value is not None]
    if not any(user.op_type in _NORMALIZES for user in users) or any(
        constant(value) is not None for value in values
    ):
        return
    shapes = [guard.proven.dimensions(value) for value in values]
    if shapes[0] is not None and None not in shapes[0] and shapes.count(shapes[0]) == len(shapes):
        return
    inputs.each(node, range(len(node.inputs)), guard.not_empty)


def einsum(node: ir.Node, guard: Guard) -> None:
    terms = node.attributes.get_string("equation", "").partition("->")[0].split(",")
    for index, term in enumerate(terms[: len(node.inputs)]):
        if "." not in term:  # the backend counts the axes of an ellipsis
            inputs.of_rank(len(term.replace(" ", "")), index)(node, guard)


def gemm(node: ir.Node, guard: Guard) -> None:
    """The backend treats a tensor of one axis as a row of a matrix. To an empty sum it adds the
    third input without its factor."""
    for index in (0, 1):
        inputs.of_exact_rank(2, index)(node, guard)
    if len(node.inputs) < 3 or node.attributes.get_float("beta", 1.0) == 1:
        return
    first = node.inputs[0]
    if first is None:
        return
    summed = 0 if node.attributes.get_int("transA", 0) else 1
    sizes = guard.proven.sizes(first)
    if sizes is None or len(sizes) != 2 or not sizes[summed]:
        node.replace_input_with(0, guard.long(first, summed))


def matmul(node: ir.Node, guard: Guard) -> None:
    """Guards against an empty sum. The backend's result has the wrong shape or foreign memory then,
    unless the second operand is one matrix."""
    first, second = node.inputs
    if first is None or second is None:
        return
    one, other = (guard.proven.dimensions(each) for each in (first, second))
    if other is not None and len(other) == 2:
        return
    depths = [*(one or ())][-1:] + [*(other or ())][-2:-1]
    if any(isinstance(depth, int) and depth for depth in depths):
        return
    if one and other and None not in one[:-2] and one[:-2] == other[:-2]:
        return
    node.replace_input_with(0, guard.long(first, -1))


def transposed(node: ir.Node, guard: Guard) -> None:
    """As for MatMul; attributes say which axes the sum runs over."""
    inputs.each(node, [0, 1], guard.not_empty)
