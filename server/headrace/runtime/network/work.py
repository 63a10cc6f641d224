"""Estimates how much a network computes: the multiply-adds of one inference of one row.

The estimate comes from the shapes. It is exact for convolutions and matrix products, which are most
of the work of nearly all networks. If the shapes do not tell the work, there is no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import onnx_ir as ir

from headrace.runtime.network.network import Network

_BRIEF: Final = 100_000
"""Multiply-adds. At one each nanosecond they take a tenth of a millisecond."""


class _Unknown(Exception):
    """Raised for a size that the graph does not have."""


def multiply_adds(network: Network) -> int | None:
    """The multiply-add pairs of one inference. A dynamic first dimension of an input counts as 1.
    None if a size is not known, or if a layer has a body or is not an operator of ONNX.

    An elementwise layer counts one for each element of its outputs.
    """
    firsts = {port.shape[0] for port in network.inputs if port.shape}
    rows = frozenset(first for first in firsts if isinstance(first, str))
    try:
        return sum(_of_layer(node, rows) for node in network.model.graph)
    except (_Unknown, IndexError, ZeroDivisionError):  # or the layer is wrong
        return None


def is_brief(network: Network) -> bool:
    """Whether every run takes so little time that a thread should compute it itself. To give it to
    another thread and to be woken at its end costs more."""
    shapes = [port.shape for port in network.inputs]
    fixed = all(shape is not None and all(isinstance(n, int) for n in shape) for shape in shapes)
    work = multiply_adds(network) if fixed else None
    return work is not None and work <= _BRIEF


def _of_layer(node: ir.Node, rows: frozenset[str]) -> int:
    has_body = any(a.type in _BODIES for a in node.attributes.values())
    if node.domain not in ("", "ai.onnx") or has_body or node.op_type in _UNKNOWN:
        raise _Unknown
    made = sum(math.prod(_shape(value, rows)) for value in node.outputs if value.name)
    depth = _DEPTHS.get(node.op_type)
    return made if depth is None else made * depth(node, rows)


def _shape(value: ir.Value | None, rows: frozenset[str]) -> list[int]:
    if value is None or value.shape is None:
        raise _Unknown
    sizes = []
    for size in value.shape:
        known = 1 if isinstance(size, ir.SymbolicDim) and size.value in rows else size
        if not isinstance(known, int):
            raise _Unknown
        sizes.append(known)
    return sizes


def _matmul(node: ir.Node, rows: frozenset[str]) -> int:
    return _shape(node.inputs[0], rows)[-1]


def _gemm(node: ir.Node, rows: frozenset[str]) -> int:
    transposed = node.attributes.get("transA")
    first = transposed is not None and transposed.as_int() != 0
    return _shape(node.inputs[0], rows)[0 if first else -1]


def _conv(node: ir.Node, rows: frozenset[str]) -> int:
    """Multiply-adds for each output: the size of the kernel times the channels of its group."""
    return math.prod(_shape(node.inputs[1], rows)[1:])


def _conv_transpose(node: ir.Node, rows: frozenset[str]) -> int:
    """Multiply-adds for each output, if each took the whole kernel over all input channels of its
    group. With strides, an output takes less."""
    weights, group = _shape(node.inputs[1], rows), node.attributes.get("group")
    groups = 1 if group is None else group.as_int()
    return math.prod([weights[0] // groups, *weights[2:]])


def _recurrent(node: ir.Node, rows: frozenset[str]) -> int:
    """Multiply-adds for each output of the sequence: the gates' rows times the sizes of the input
    and the state."""
    weights, again = _shape(node.inputs[1], rows), _shape(node.inputs[2], rows)
    return weights[1] * (weights[2] + again[2]) // max(1, again[2])


_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_UNKNOWN = frozenset(("Attention", "DFT", "Einsum", "STFT"))
_DEPTHS: Mapping[str, Callable[[ir.Node, frozenset[str]], int]] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvInteger": _conv,
    "ConvTranspose": _conv_transpose,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
"""Functions that return the multiply-adds for each element of an operator's output."""
