"""Infers the shapes of a network's values. Follows the sizes that it computes, e.g. for Reshape."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from headrace.plugins.batch.analysis.axes import Shape, constant_of
from headrace.runtime.network.type_inference import TypeInference
from headrace.runtime.network.values import Array
from headrace.runtime.system.graph_memory import watched

_MOST = 4096
"""Most elements of a value that is followed. Shapes have few elements."""
_OTHER = 24
"""The size that is assumed for dynamic dimensions other than the batch."""

_Operator: TypeAlias = Callable[..., Any]


def _slice(data: Array, starts: Array, ends: Array, *rest: Array) -> Array:
    axes = rest[0] if rest else np.arange(len(starts))
    steps = rest[1] if len(rest) > 1 else np.ones(len(starts), np.int64)
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(int(start), int(end), int(step))
    return data[tuple(index)]


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    return np.asarray(np.trunc(a / b)).astype(a.dtype)


def _concat(node: ir.Node, *xs: Array) -> Array:
    return np.concatenate(xs, _axis(node))


def _gather(node: ir.Node, x: Array, at: Array) -> Array:
    return np.asarray(x.take(at, _axis(node)))


def _cast(node: ir.Node, x: Array) -> Array:
    return x.astype(ir.DataType(node.attributes["to"].as_int()).numpy())


def _axis(node: ir.Node) -> int:
    attribute = node.attributes.get("axis")
    return 0 if attribute is None else attribute.as_int()


def _squeeze(node: ir.Node, x: Array, *axes: Array) -> Array:
    given = node.attributes.get("axes")
    over = given.as_ints() if given is not None else axes[0].tolist() if axes else None
    return x.squeeze(None if over is None else tuple(over))


def _unsqueeze(node: ir.Node, x: Array, *axes: Array) -> Array:
    given = node.attributes.get("axes")
    return np.expand_dims(x, tuple(given.as_ints() if given is not None else axes[0].tolist()))


_OF_VALUES: Mapping[str, _Operator] = {
    "Add": np.add,
    "Div": _divide,
    "Equal": np.equal,
    "Floor": np.floor,
    "Identity": np.asarray,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Range": np.arange,
    "Slice": _slice,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Where": np.where,
}
_OF_ATTRIBUTES: Mapping[str, _Operator] = {
    "Cast": _cast,
    "Concat": _concat,
    "Gather": _gather,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}


def _elements(node: ir.Node, inputs: Sequence[Array]) -> float:
    """The most elements that the result may have."""
    if node.op_type == "Range":
        start, limit, delta = (float(each) for each in inputs)
        return (limit - start) / delta
    if node.op_type == "Gather":
        data, at = inputs
        return float(at.size * data.size / max(1, data.shape[_axis(node)]))
    if node.op_type in _OF_ATTRIBUTES or node.op_type == "Slice":
        return float(sum(each.size for each in inputs))
    return float(math.prod(np.broadcast_shapes(*(each.shape for each in inputs))))


def known(value: ir.Value | None) -> Array | None:
    """The value's array if the value is a small constant, otherwise None."""
    tensor = None if value is None else constant_of(value)
    if tensor is None or tensor.size > _MOST:
        return None
    return np.asarray(tensor.numpy())


def shape_of(node: ir.Node, shape: Sequence[int]) -> Array:
    """The result of a Shape or Size node."""
    if node.op_type == "Size":
        return np.array(np.prod(shape, dtype=np.int64))
    start, end = node.attributes.get("start"), node.attributes.get("end")
    first = 0 if start is None else start.as_int()
    return np.array(shape[first : None if end is None else end.as_int()], np.int64)


def compute(node: ir.Node, inputs: Sequence[Array]) -> Array | None:
    """The result of an operator on known values. None if the operator is not one of those that
    compute sizes, or if the result is too large or not known."""
    if node.domain != "":
        return None
    operator = _OF_VALUES.get(node.op_type)
    if operator is None and node.op_type in _OF_ATTRIBUTES:
        operator = partial(_OF_ATTRIBUTES[node.op_type], node)
    if operator is None:
        return None
    try:
        if _elements(node, inputs) > _MOST:
            return None
        found = np.asarray(operator(*inputs))
    except (ValueError, IndexError, TypeError, KeyError, ArithmeticError):
        return None  # the result is not known, and the network may be wrong
    return found if found.size <= _MOST else None


def shapes(model: ir.Model, rows: int) -> dict[str, Shape]:
    """Shapes by name for a batch of `rows` rows. The empty name has the shape `(rows,)`."""
    sized = watched(model.clone())
    graph = sized.graph
    for value in graph.inputs:
        if value.name not in graph.initializers and value.shape is not None:
            rest = (size if isinstance(size, int) else _OTHER for size in list(value.shape)[1:])
            value.shape = ir.Shape([rows, *rest])
    for node in graph:
        for value in node.outputs:
            value.shape = None
    inference = TypeInference(sized)
    for node in graph:
        inference.add(node)
        found = _computed_size(node, inference)
        if found is not None:
            inference.flush()
            inference.values[node.outputs[0]] = found
    inference.flush()
    values = (*graph.inputs, *(value for node in graph for value in node.outputs))
    return {"": (rows,), **{value.name or "": _fixed(value) for value in values}}


def _computed_size(node: ir.Node, inference: TypeInference) -> Array | None:
    """The result of a layer that computes with sizes, if its inputs are known."""
    if node.op_type in ("Shape", "Size") and node.domain == "":
        inference.flush()
        given = node.inputs[0]
        shape = None if given is None else _fixed(given)
        return None if shape is None else shape_of(node, shape)
    inputs = []
    for value in node.inputs:
        inferred = None if value is None else inference.values.get(value)
        array = known(value) if inferred is None else inferred
        if array is None:
            return None
        inputs.append(array)
    return compute(node, inputs) if inputs else None


def _fixed(value: ir.Value) -> Shape:
    """The shape if all of its sizes are known, otherwise None."""
    if value.shape is None:
        return None
    fixed = tuple(size for size in value.shape if isinstance(size, int))
    return fixed if len(fixed) == len(value.shape) else None
