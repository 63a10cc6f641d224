"""The parts that conditions are built from, in OpenVINO's graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.plugins.openvino.library import openvino, operations

Condition: TypeAlias = tuple[openvino.Node, str]
"""The condition's values, and a text that says what the layer does if one of them is less than
1."""

EMPTY: Final = "would return elements for an empty tensor"
UNLIKE: Final = "gets tensors whose shapes do not fit each other"
ALWAYS: Final = np.array([2**31 - 1])
"""A value of a condition that holds."""


def is_constant(output: openvino.Output) -> bool:
    """Whether the value is the same in every run."""
    return not any(is_source(each) or is_shape(each) for each in ancestors(output))


def sizes_along(source: openvino.Output, axes: list[int]) -> openvino.Node:
    """The sizes along the axes. If no axis is given, the least size of all axes."""
    shape = source.get_partial_shape()
    known = [shape[axis] for axis in axes] if shape.rank.is_static else []
    if known and all(size.is_static for size in known):
        return operations.constant(np.array([size.get_length() for size in known]))
    sizes = operations.shape_of(source, "i64")
    if axes:
        return operations.gather(sizes, np.array(axes), np.int64(0))
    bounded = operations.concat([sizes, operations.constant(ALWAYS)], 0)
    return operations.reduce_min(bounded, np.array([0]), keep_dims=True)


def is_known(value: openvino.Output, axis: int) -> bool:
    """Whether the value's size along the axis is known before a run."""
    shape = value.get_partial_shape()
    return shape.rank.is_static and bool(shape[axis].is_static)


def all_hold(holds: openvino.Node) -> openvino.Node:
    """A list with one value, which is 1 if all elements are true and 0 otherwise. It is a product,
    because on processors without AVX OpenVINO has no kernel for the "and" of many elements."""
    shape = holds.get_output_partial_shape(0)
    if shape == openvino.PartialShape([1]):
        return operations.convert(holds, "i64")
    axes = np.arange(shape.rank.get_length())
    product = operations.reduce_prod(operations.convert(holds, "i32"), axes, keep_dims=False)
    return operations.unsqueeze(operations.convert(product, "i64"), np.int64(0))


def same(one: openvino.Output, at: int, other: openvino.Output, beside: int) -> Iterator[Condition]:
    """Whether the first value's axis `at` has the size of the other value's axis `beside`."""
    sizes = sizes_along(one, [at]), sizes_along(other, [beside])
    yield all_hold(operations.equal(*sizes)), UNLIKE


def keep_length(operation: openvino.Node, axis: int, length: int) -> None:
    """Has the operation's first input reshaped, so that a run fails before the operation reads an
    axis of another length.

    Args:
        axis: an axis of the input, whose rank is known.
        length: the length of the axis, 1 or more.
    """
    data = operation.input_value(0)
    pattern = np.zeros(len(data.get_partial_shape()), np.int64)  # 0 leaves a size as it is
    pattern[axis] = length
    checked = operations.reshape(data, operations.constant(pattern), special_zero=True)
    checked.set_friendly_name(operation.get_friendly_name())  # for errors
    operation.input(0).replace_source_output(checked.output(0))


def keep_fitting(port: openvino.Input, fits: openvino.Node) -> None:
    """Has the input reshaped, so that a run fails before the operation reads an input that does not
    fit the other ones.

    Args:
        port: an input with a known number of axes, two or more.
        fits: int64[1] that follows from shapes: 1 if the inputs fit each other, and 0 if they do
            not. Then the input is reshaped to negative sizes. If only one size of the new shape
            followed from `fits`, OpenVINO's compiler would take that size from the data instead.
    """
    data, most = port.get_source_output(), np.int64(2)
    rank = len(data.get_partial_shape())
    sizes = operations.gather(
        operations.shape_of(data, "i64"), np.array([rank - 2, rank - 1]), np.int64(0)
    )
    last = operations.subtract(operations.multiply(operations.add(sizes, most), fits), most)
    kept = operations.constant(np.zeros(rank - 2, np.int64))  # 0 leaves a size as it is
    checked = operations.reshape(data, operations.concat([kept, last], 0), special_zero=True)
    checked.set_friendly_name(port.get_node().get_friendly_name())  # for errors
    port.replace_source_output(checked.output(0))


def signed(output: openvino.Output) -> openvino.Node:
    """The value in int64. In most cases OpenVINO's reader of ONNX has indices in int64 anyway. For
    a constant, only its least and greatest element."""
    node = output.get_node()
    if node.get_type_name() == "Constant" and node.data.size:
        return operations.constant(np.array([node.data.min(), node.data.max()], np.int64))
    if output.get_element_type() == openvino.Type.i64:
        return output
    return operations.convert(output, "i64")


def ancestors(output: openvino.Output) -> Iterator[openvino.Node]:
    """The operations that the value comes from. Stops at operations that give a shape, because a
    shape does not depend on values."""
    seen: set[str] = set()
    stack = [output.get_node()]
    while stack:
        node = stack.pop()
        if node.get_name() not in seen:
            seen.add(node.get_name())
            yield node
            if not is_shape(node):
                stack += [port.get_source_output().get_node() for port in node.inputs()]


def follows_values(output: openvino.Output) -> bool:
    """Whether the value depends on a request's values, and not only on its shapes."""
    return any(is_source(each) for each in ancestors(output))


def is_shape(node: Any) -> bool:
    """Whether the node is the operation that gives a shape."""
    return str(node.get_type_name()) == "ShapeOf"


def is_source(node: Any) -> bool:
    """Whether the node gives a value that is not known before a run."""
    return str(node.get_type_name()) in ("Parameter", "ReadValue", "RandomUniform")
