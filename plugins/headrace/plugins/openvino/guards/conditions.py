"""Conditions on the inputs of operations in OpenVINO's graph that OpenVINO does not check itself.

A condition is computed in the graph. Its value is int64[n], and each element is 1 or more if the
condition holds for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.graph.empty_tensors import axes_to_guard, is_empty
from headrace.plugins.openvino.guards.attention import ATTENTION, ATTENTION_LAYERS
from headrace.plugins.openvino.guards.integers import INTEGERS, in_floats
from headrace.plugins.openvino.guards.sequences import SEQUENCES
from headrace.plugins.openvino.guards.sizes import SIZES
from headrace.plugins.openvino.guards.terms import (
    EMPTY,
    UNLIKE,
    Condition,
    all_hold,
    follows_values,
    is_constant,
    is_known,
    keep_fitting,
    keep_length,
    same,
    signed,
    sizes_along,
)
from headrace.plugins.openvino.library import change_readers, openvino, operations

_INDEX: Final = "gets an index that is out of bounds"


def conditions(operation: openvino.Node, layer: str = "") -> Iterator[Condition]:
    """The conditions that must hold in each run. A condition on constants must hold once. Changes
    inputs of the operation that would crash it otherwise.

    Args:
        layer: the type of the layer that the operation was made for, if it is known.
    """
    for found in (_CONDITIONS.get(operation.get_type_name()), _OF_LAYERS.get(layer)):
        if found is not None:
            yield from found(operation)
    for source, axes in axes_to_guard(operation):
        yield sizes_along(source, axes), EMPTY


def _size(operation: openvino.Node, at: int) -> openvino.Node:
    """The size of the operation's data along an axis. The operation's input `at` is that axis."""
    return sizes_along(operation.input_value(0), [operation.input_value(at).get_node().data.item()])


def _inside(indices: openvino.Node, sizes: openvino.Node) -> openvino.Node:
    """Whether all indices are within the sizes. ONNX counts negative indices from the end."""
    low = operations.greater_equal(indices, operations.negative(sizes))
    return all_hold(operations.logical_and(low, operations.less(indices, sizes)))


def _gather(operation: openvino.Node) -> Iterator[Condition]:
    """For an index that is a little out of bounds the kernel gives zero. For a large one it reads
    outside of the tensor, because the offset in bytes overflows. So it gets none from a request.
    For an axis without elements it gives old contents of the memory."""
    indices, size = operation.input_value(1), _size(operation, 2)
    if follows_values(indices):
        yield _bounded(operation, size), _INDEX
    else:
        yield _inside(signed(indices), size), _INDEX


def _regions(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel skips the first region that has the image -1, and all regions after it."""
    images = signed(operation.input_value(2))
    low = operations.greater_equal(images, np.int64(0))
    inside = operations.less(images, sizes_along(operation.input_value(0), [0]))
    yield all_hold(operations.logical_and(low, inside)), _INDEX


def _scatter_elements(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel writes outside of the tensor if an index is too far below zero, or if it gets more
    indices along another axis than the tensor has elements there. So it gets no such indices."""
    data, indices = operation.input_value(0), operation.input_value(1)
    rank = len(data.get_partial_shape())
    axis = operation.input_value(3).get_node().data.item() % rank
    others = [at for at in range(rank) if at != axis]
    sizes = sizes_along(data, others or [axis])
    fits = operations.less_equal(sizes_along(indices, others or [axis]), sizes)
    if not all(is_known(value, at) for value in (data, indices) for at in others):
        zeros = operations.constant(np.zeros(rank - 1, np.int64))
        ones, axes = operations.constant(np.ones(rank - 1, np.int64)), np.array(others)
        for port in (operation.input(1), operation.input(2)):
            kept = operations.slice(port.get_source_output(), zeros, sizes, ones, axes)
            port.replace_source_output(kept.output(0))
    if others:
        yield all_hold(fits), UNLIKE
    yield _bounded(operation, _size(operation, 3)), _INDEX


def _scatter_nd(operation: openvino.Node) -> Iterator[Condition]:
    """If the indices are a list of unknown length, which is one index, the backend does not compare
    the shape of the updates with that of the data, and the kernel may read beyond the updates. So
    the list gets the length that fits both."""
    values = operation.input_values()
    data, indices, updates = (value.get_partial_shape() for value in values)
    ranks = data.rank, indices.rank, updates.rank
    if any(rank.is_dynamic for rank in ranks) or len(indices) != 1 or indices.is_static:
        return
    length = len(data) - len(updates)
    if length < 1:
        yield operations.constant(np.array([0])), UNLIKE
        return
    known = operations.reshape(values[1], np.array([length]), special_zero=False)
    known.set_friendly_name(operation.get_friendly_name())  # for errors
    operation.input(1).replace_source_output(known.output(0))


def _gather_nd(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel reads any memory that an index points to."""
    first = int(operation.get_attributes()["batch_dims"])
    count = operation.get_input_partial_shape(1)[-1].get_length()
    sizes = sizes_along(operation.input_value(0), list(range(first, first + count)))
    yield _bounded(operation, sizes), _INDEX


def _batches(operation: openvino.Node) -> Iterator[Condition]:
    """The reader repeats the data or the indices of a GatherND if they are for a batch of one. ONNX
    requires that both batches have the same size."""
    if operation.get_type_name() == "Broadcast":
        data, made = operation.input_value(0), operation.output(0)
        for axis in range(len(data.get_partial_shape())):
            yield from same(data, axis, made, axis)


def _bounded(operation: openvino.Node, sizes: openvino.Node) -> openvino.Node:
    """Whether the indices in the operation's input 1 are within the sizes. Replaces the input by
    indices that are always within the sizes."""
    zero, one = np.int64(0), np.int64(1)
    given = operations.convert(operation.input_value(1), "i64")
    back = operations.select(operations.less(given, zero), sizes, zero)
    last = operations.subtract(sizes, one)
    bounded = operations.minimum(operations.add(given, back), last)
    operation.input(1).replace_source_output(operations.maximum(bounded, zero).output(0))
    return _inside(given, sizes)


def _range(operation: openvino.Node) -> Iterator[Condition]:
    """With a step of 0 the kernel returns as many elements as in its last run."""
    step = operation.input_value(2)
    zero = operations.constant(0, step.get_element_type())
    yield all_hold(operations.not_equal(step, zero)), "gets a step of 0"


def _product(operation: openvino.Node) -> Iterator[Condition]:
    """With constant weights, the kernel does not compare the number of columns with theirs. It
    would read beyond rows that are too short, so it gets rows of the right length. Neither does the
    kernel of two products with a softmax between them, if one of the numbers is 1."""
    yield from in_floats(operation)
    first, second = operation.input_values()
    shape, weights = first.get_partial_shape(), second.get_partial_shape()
    if shape.rank.is_dynamic or weights.rank.is_dynamic or min(len(shape), len(weights)) < 2:
        return
    turned = operation.get_attributes()
    columns, rows = -2 if turned["transpose_a"] else -1, -1 if turned["transpose_b"] else -2
    if is_known(first, columns) and is_known(second, rows):
        return
    ((fits, broken),) = same(first, columns, second, rows)
    yield fits, broken
    if is_constant(second) and weights.is_static:
        if length := weights[rows].get_length():
            keep_length(operation, columns, length)
        return
    made = operation.output(0)
    free = [at for at in range(len(made.get_partial_shape())) if not is_known(made, at)]
    if free:  # a layer that reads a product's shape keeps it out of that kernel
        yield operations.maximum(sizes_along(made, free[:1]), np.int64(1)), broken
    else:
        keep_fitting(operation.input(1), fits)


def _distinct(operation: openvino.Node) -> Iterator[Condition]:
    """NaN is not equal to itself, so the kernel leaves places of the outputs as they were."""
    values = operation.input_value(0)
    if values.get_element_type().is_real():
        yield all_hold(operations.equal(values, values)), "gets NaN"


def _joined(operation: openvino.Node) -> Iterator[Condition]:
    """The backend leaves out a tensor that never has elements. It does not compare the tensor's
    other sizes, and does not count its size along the axis. If that matters, the readers get a
    result that is made without a Concat."""
    values, made = operation.input_values(), operation.output(0)
    if not any(is_empty(value.get_partial_shape()) for value in values):
        return
    shape = made.get_partial_shape()
    rank = len(shape)
    axis = operation.get_attributes()["axis"] % rank
    others = [each for each in range(rank) if each != axis]
    first = sizes_along(values[0], others) if others else None
    for value in values[1:] if others else []:
        yield all_hold(operations.equal(first, sizes_along(value, others))), UNLIKE
    if is_empty(shape) and shape.is_dynamic:
        along = operations.concat([sizes_along(value, [axis]) for value in values], 0)
        sizes = [sizes_along(values[0], [each]) for each in range(rank)]
        sizes[axis] = operations.reduce_sum(along, np.int64(0), keep_dims=True)
        nothing = operations.constant(0, made.get_element_type())
        whole = operations.concat(sizes, 0)
        change_readers(made, lambda _: operations.broadcast(nothing, whole))


def _channels(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel repeats scales and biases if their number is not the number of channels. With more
    scales than channels, it repeats a single channel."""
    channels = sizes_along(operation.input_value(0), [1])
    for index in range(1, operation.get_input_size()):
        count = sizes_along(operation.input_value(index), [0])
        yield all_hold(operations.equal(count, channels)), UNLIKE


def _levels(operation: openvino.Node) -> Iterator[Condition]:
    """If a scale is negative, the kernel gives values outside of a range the range's other end. If
    there are more scales than data, the kernel repeats the data."""
    data, low, high = (operation.input_value(index) for index in range(3))
    yield all_hold(operations.less_equal(low, high)), "gets a negative scale"
    yield from _repeated(low, data)


def _slopes(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel gives the output the shape of the data. ONNX requires that the slope can be
    repeated to that shape. A list of slopes may belong to the second axis (`limits`)."""
    yield from in_floats(operation)
    data, slope = operation.input_values()
    if len(slope.get_partial_shape()) > len(data.get_partial_shape()):
        yield operations.constant(np.array([0])), UNLIKE
    for axis in range(-min(len(each.get_partial_shape()) for each in (data, slope)), 0):
        sizes = sizes_along(slope, [axis])
        holds = operations.logical_or(
            operations.equal(sizes, sizes_along(data, [axis])),
            operations.equal(sizes, np.int64(1)),
        )
        if len(slope.get_partial_shape()) == 1 < len(data.get_partial_shape()):
            second = operations.equal(sizes, sizes_along(data, [1]))
            holds = operations.logical_or(holds, second)
        yield all_hold(holds), UNLIKE


def _quantised(operation: openvino.Node) -> Iterator[Condition]:
    """The operations of a quantised layer repeat its data if there are more scales or zero points.
    ONNX repeats scales and zero points alone."""
    if operation.get_type_name() in ("Multiply", "Subtract"):
        data, other = operation.input_values()
        yield from _repeated(other, data)


def _repeated(value: openvino.Output, data: openvino.Output) -> Iterator[Condition]:
    """Whether the value can be repeated to the shape of the data."""
    shape, whole = value.get_partial_shape(), data.get_partial_shape()
    if shape.rank.is_dynamic or whole.rank.is_dynamic:
        return
    if len(shape) > len(whole):
        yield operations.constant(np.array([0])), UNLIKE
        return
    sizes = {at: shape[at] for at in range(-len(shape), 0)}
    axes = [at for at, size in sizes.items() if size.is_dynamic or size != 1]
    if axes:
        given = sizes_along(value, axes)
        alike = operations.equal(given, sizes_along(data, axes))
        holds = operations.logical_or(alike, operations.equal(given, np.int64(1)))
        yield all_hold(holds), UNLIKE


_CONDITIONS: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {
        **ATTENTION,
        **INTEGERS,
        **SEQUENCES,
        **SIZES,
        "BatchNormInference": _channels,
        "Concat": _joined,
        "FakeQuantize": _levels,
        "Gather": _gather,
        "GatherND": _gather_nd,
        "GroupNormalization": _channels,
        "MatMul": _product,
        "PRelu": _slopes,
        "Range": _range,
        "ROIAlign": _regions,
        "ScatterElementsUpdate": _scatter_elements,
        "ScatterNDUpdate": _scatter_nd,
        "Unique": _distinct,
    }
)
_OF_LAYERS: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {
        **ATTENTION_LAYERS,
        "ConvInteger": _quantised,
        "DequantizeLinear": _quantised,
        "GatherND": _batches,
        "MatMulInteger": _quantised,
    }
)
"""Conditions on each operation that was made for a layer of a type."""
