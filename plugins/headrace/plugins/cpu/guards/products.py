"""Guards of layers that multiply matrices."""

from __future__ import annotations

import onnx_ir as ir

from headrace.plugins.cpu.guards import inputs
from headrace.plugins.cpu.guards.guard_layers import Guard
from headrace.runtime.network.shapes.ledger import AT_LEAST


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
    if len(node.inputs) == 3 and node.attributes.get_float("beta", 1.0) != 1:
        quantized(node, guard)


def matmul(node: ir.Node, guard: Guard) -> None:
    """Guards against an empty sum. The backend's result has the wrong shape or foreign memory then,
    unless the second operand is one matrix."""
    first, second = node.inputs
    if first is None or second is None:
        return
    one, other = (guard.sizes.of(operand) for operand in (first, second))
    if other is not None and len(other) == 2:
        return
    if one and other and None not in one[:-2] and one[:-2] == other[:-2]:
        return
    quantized(node, guard)


def quantized(node: ir.Node, guard: Guard) -> None:
    """Guards a product of matrices against an empty sum, unless a size proves that it is none."""
    first, second = [*node.inputs, None, None][:2]
    if first is None or second is None:
        return
    along = [
        -2 if node.attributes.get_int("transA", 0) else -1,
        -1 if node.attributes.get_int("transB", 0) else -2,
    ]
    sizes = [
        shape[axis]
        for value, axis in zip((first, second), along, strict=True)
        if len(shape := guard.sizes.of(value) or ()) >= -axis
    ]
    if any(isinstance(size, int) and size for size in sizes):
        return
    if any(guard.judged("", (AT_LEAST, size, 1)) for size in sizes):
        return
    node.replace_input_with(0, guard.long(first, along[0]))


def transpose(node: ir.Node, guard: Guard) -> None:
    """Guards a Transpose if a product of matrices takes the result. The backend computes both as
    one. It then does not compare the axes with those that the Transpose names, and divides by the
    size of the first axis if that one moves."""
    if not any(user.op_type == "MatMul" for user in _users(node)):
        return
    order = node.attributes.get_ints("perm", None)
    if order is not None:
        inputs.of_exact_rank(len(order))(node, guard)
    if order is None or (len(order) > 2 and order[0] != 0):
        inputs.not_empty(0)(node, guard)


def _users(node: ir.Node) -> list[ir.Node]:
    """The layers that take results of the node, also through a Cast."""
    users = [*node.successors()]
    return users + [reader for user in users if user.op_type == "Cast" for reader in _users(user)]


def transposed(node: ir.Node, guard: Guard) -> None:
    """As for MatMul; attributes say which axes the sum runs over."""
    inputs.each(node, [0, 1], guard.not_empty)
