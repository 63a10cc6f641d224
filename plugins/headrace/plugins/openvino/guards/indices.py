"""Conditions on indices, under the rules of `conditions`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.guards.integers import scattered
from headrace.plugins.openvino.guards.terms import (
    UNLIKE,
    Condition,
    all_hold,
    follows_values,
    is_known,
    same,
    signed,
    sizes_along,
)
from headrace.plugins.openvino.library import openvino, operations

_INDEX: Final = "gets an index that is out of bounds"


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
    yield _within(operation, _size(operation, 2)), _INDEX


def _gather_elements(operation: openvino.Node) -> Iterator[Condition]:
    """The compiler drops a Slice before it, and then the kernel reads what was cut off."""
    data = operation.input_value(0)
    axis = operation.get_attributes()["axis"] % len(data.get_partial_shape())
    yield _within(operation, sizes_along(data, [axis])), _INDEX


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
    yield from scattered(operation)


def _scatter_nd(operation: openvino.Node) -> Iterator[Condition]:
    """If the indices are a list of unknown length, which is one index, the backend does not compare
    the shape of the updates with that of the data, and the kernel may read beyond the updates. So
    the list gets the length that fits both."""
    yield from scattered(operation)
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


def batches(operation: openvino.Node) -> Iterator[Condition]:
    """The reader repeats the data or the indices of a GatherND if they are for a batch of one. ONNX
    requires that both batches have the same size."""
    if operation.get_type_name() == "Broadcast":
        data, made = operation.input_value(0), operation.output(0)
        for axis in range(len(data.get_partial_shape())):
            yield from same(data, axis, made, axis)


def _within(operation: openvino.Node, size: openvino.Node) -> openvino.Node:
    """Whether the indices in the operation's input 1 are within the size. The kernel gets no others
    from a request."""
    indices = operation.input_value(1)
    if follows_values(indices):
        return _bounded(operation, size)
    return _inside(signed(indices), size)


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


INDICES: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {
        "Gather": _gather,
        "GatherElements": _gather_elements,
        "GatherND": _gather_nd,
        "ROIAlign": _regions,
        "ScatterElementsUpdate": _scatter_elements,
        "ScatterNDUpdate": _scatter_nd,
    }
)
