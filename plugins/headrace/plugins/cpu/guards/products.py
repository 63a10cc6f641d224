"""Guards of layers that multiply matrices."""

from __future__ import annotations

import onnx_ir as ir

from headrace.plugins.cpu.guards import inputs
from headrace.plugins.cpu.guards.guard_layers import Guard


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
