"""Conditions on the inputs of operations in OpenVINO's graph that OpenVINO does not check itself.

A condition is computed in the graph. Its value is int64[n], and each element is 1 or more if the
condition holds for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.graph.empty_tensors import axes_to_guard
from headrace.plugins.openvino.guards.integers import INTEGERS, in_floats
from headrace.plugins.openvino.guards.terms import (
    Condition,
    all_hold,
    ancestors,
    follows_values,
    is_shape,
    signed,
    sizes_along,
)
from headrace.plugins.openvino.library import openvino, operations

EMPTY: Final = "would make elements of a tensor that has none"
_INDEX: Final = "gets an index that is out of bounds"
_NEGATIVE: Final = "gets a negative length"
_UNLIKE: Final = "gets tensors that do not fit each other"
_SEQUENCES: Final[Mapping[str, int]] = MappingProxyType(
    {"GRUSequence": 2, "LSTMSequence": 3, "RNNSequence": 2}
)
"""Operations over sequences, and the index of the input that holds each sequence's length."""


def conditions(operation: openvino.Node) -> Iterator[Condition]:
    """The conditions that must hold in each run. A condition on constants must hold once. Changes
    inputs of the operation that would crash it otherwise."""
    found = _CONDITIONS.get(operation.get_type_name())
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
    """For an index out of bounds the kernel gives zero. For an axis without elements it gives old
    contents of the memory."""
    yield _inside(signed(operation.input_value(1)), _size(operation, 2)), _INDEX


def _regions(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel skips the first region that has the image -1, and all regions after it."""
    images = signed(operation.input_value(2))
    low = operations.greater_equal(images, np.int64(0))
    inside = operations.less(images, sizes_along(operation.input_value(0), [0]))
    yield all_hold(operations.logical_and(low, inside)), _INDEX


def _scatter_elements(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel writes before the tensor if an index is too far below zero."""
    yield _bounded(operation, _size(operation, 3)), _INDEX


def _gather_nd(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel reads any memory that an index points to."""
    first = int(operation.get_attributes()["batch_dims"])
    count = operation.get_input_partial_shape(1)[-1].get_length()
    sizes = sizes_along(operation.input_value(0), list(range(first, first + count)))
    yield _bounded(operation, sizes), _INDEX


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
    yield all_hold(operations.not_equal(step, zero)), "counts in steps of 0"


def _repeats(operation: openvino.Node) -> Iterator[Condition]:
    repeats = signed(operation.input_value(1))
    yield operations.add(operations.minimum(repeats, np.int64(0)), np.int64(1)), _NEGATIVE


def _factors(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel ignores sizes or scales beyond the number of axes."""
    rank = operation.get_input_partial_shape(0).rank.get_length()
    axes = operation.input_value(2) if operation.get_input_size() > 2 else None
    count = operations.constant(np.array([rank])) if axes is None else sizes_along(axes, [0])
    fits = operations.equal(sizes_along(operation.input_value(1), [0]), count)
    yield all_hold(fits), "gets another count of sizes or scales than it has axes"
    yield from in_floats(operation)


def _count(operation: openvino.Node) -> Iterator[Condition]:
    """Checks the count that the request gives. `repairs` has bounded it in the graph."""
    bounded = operation.input_value(1).get_node()
    if bounded.get_type_name() == "Maximum":
        bounded = bounded.input_value(0).get_node()
    given, there = bounded.input_values()
    yield (
        all_hold(operations.less_equal(given, there)),
        "gets a larger count than there are elements",
    )


def _edges(operation: openvino.Node) -> Iterator[Condition]:
    """If nothing is left of an axis, the kernel repeats elements that it has cut away."""
    if operation.get_attributes()["pad_mode"] == "constant":
        return
    pads = operation.input_value(1), operation.input_value(2)
    if all(each.get_node().get_type_name() == "Constant" for each in pads) and all(
        each.get_node().data.min(initial=0) >= 0 for each in pads
    ):
        return
    left = operations.shape_of(operation.input_value(0), "i64")
    for each in pads:
        cut = operations.minimum(operations.convert(each, "i64"), np.int64(0))
        left = operations.add(left, cut)
    yield left, EMPTY


def _lengths(operation: openvino.Node) -> Iterator[Condition]:
    """To OpenVINO a length of -1 means all elements that are left. The reader of ONNX itself uses
    this length."""
    lengths = operation.input_value(2)
    if follows_values(lengths):
        least = operations.minimum(signed(lengths), np.int64(0))
        yield operations.add(least, np.int64(1)), _NEGATIVE


def _pattern(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel treats a single size that does not fit as -1, unless the size is positive."""
    data, pattern = operation.input_value(0), operation.input_value(1)
    if not follows_values(pattern):
        return
    sizes, nothing = signed(pattern), np.int64(0)
    if pattern.get_partial_shape() == openvino.PartialShape([1]):
        of_data = operations.shape_of(data, "i64")
        if operation.get_attributes()["special_zero"]:
            kept = operations.gather(of_data, nothing, nothing)
            sizes = operations.select(operations.equal(sizes, nothing), kept, sizes)
        count = operations.reduce_prod(of_data, nothing, keep_dims=True)
        fits = operations.equal(sizes, count)
        holds = operations.logical_or(fits, operations.equal(sizes, np.int64(-1)))
        yield all_hold(holds), "gets a shape that does not fit the elements"
    else:
        yield operations.add(operations.minimum(sizes, nothing), np.int64(2)), _NEGATIVE


def _sequence(operation: openvino.Node) -> Iterator[Condition]:
    given = operation.input_value(_SEQUENCES[operation.get_type_name()])
    if any(is_shape(each) for each in ancestors(given)):
        return  # the reader of ONNX has set all lengths to that of the tensor
    lengths, longest = signed(given), sizes_along(operation.input_value(0), [1])
    bounded = operations.logical_and(
        operations.greater_equal(lengths, np.int64(0)), operations.less_equal(lengths, longest)
    )
    yield all_hold(bounded), "gets a length of a sequence that is out of bounds"


def _expansion(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel does not check the given sizes if it knows the sizes of the result."""
    data, target = operation.input_value(0), operation.input_value(1)
    shape, count = data.get_partial_shape(), target.get_partial_shape()
    mode = operation.get_attributes()["mode"]
    if (
        mode == "explicit"
        or shape.rank.is_dynamic
        or count.is_dynamic
        or not follows_values(target)
    ):
        return
    both = min(len(shape), count[0].get_length())
    if both:
        given = operations.gather(signed(target), np.arange(-both, 0), np.int64(0))
        sizes, one = sizes_along(data, list(range(len(shape) - both, len(shape)))), np.int64(1)
        holds = operations.logical_or(operations.equal(sizes, one), operations.equal(sizes, given))
        if mode == "bidirectional":
            holds = operations.logical_or(holds, operations.equal(given, one))
        yield all_hold(holds), _UNLIKE


def _joined(operation: openvino.Node) -> Iterator[Condition]:
    """The backend leaves out a tensor that never has elements, and does not compare its other
    sizes."""
    values = operation.input_values()
    shapes = [value.get_partial_shape() for value in values]
    if any(each.rank.is_static and 0 in each.get_max_shape() for each in shapes):
        axis = operation.get_attributes()["axis"]
        others = [each for each in range(len(shapes[0])) if each != axis % len(shapes[0])]
        first = sizes_along(values[0], others)
        for value in values[1:] if others else []:
            yield all_hold(operations.equal(first, sizes_along(value, others))), _UNLIKE


def _squeezed(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel does not check the given axes if it knows the sizes."""
    axes = operation.input_value(1) if operation.get_input_size() > 1 else None
    if axes is not None and follows_values(axes):
        sizes = operations.shape_of(operation.input_value(0), "i64")
        along = operations.gather(sizes, signed(axes), np.int64(0))
        yield (
            all_hold(operations.equal(along, np.int64(1))),
            "is to drop an axis that is not of size 1",
        )


def _groups(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel repeats scales and biases if their number is not the number of channels."""
    channels = sizes_along(operation.input_value(0), [1])
    for index in (1, 2):
        count = sizes_along(operation.input_value(index), [0])
        yield all_hold(operations.equal(count, channels)), _UNLIKE


def _scanned(operation: openvino.Node) -> Iterator[Condition]:
    """Checks that a sequence has elements. `repairs` has added one to each empty sequence."""
    for each in operation.get_input_descriptions():
        if each.get_type_info().name == "SliceInputDescription":
            source = operation.input_value(each.input_index)
            if source.get_node().get_type_name() == "Pad":
                source = source.get_node().input_value(0)
            yield sizes_along(source, [each.axis]), EMPTY


def _levels(operation: openvino.Node) -> Iterator[Condition]:
    """If a scale is negative, the kernel gives values outside of a range the range's other end."""
    low, high = operation.input_value(1), operation.input_value(2)
    yield all_hold(operations.less_equal(low, high)), "is given a negative scale"


def _attention(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel repeats a tensor along an axis of size 1. ONNX requires that both sizes are the
    same."""
    query, key, value = (operation.input_value(index) for index in range(3))
    made = operation.output(0)
    alike = [
        (key, 0, query, 0),
        (value, 0, query, 0),
        (value, 1, key, 1),
        (value, -2, key, -2),
        (key, -1, query, -1),
        (made, 0, query, 0),  # a mask may be larger
        (made, 1, query, 1),
        (made, -2, query, -2),
    ]
    for one, at, other, beside in alike:
        if not _is_known(one, at) or not _is_known(other, beside):
            yield (
                all_hold(operations.equal(sizes_along(one, [at]), sizes_along(other, [beside]))),
                _UNLIKE,
            )


def _is_known(value: openvino.Output, axis: int) -> bool:
    shape = value.get_partial_shape()
    return shape.rank.is_static and bool(shape[axis].is_static)


_CONDITIONS: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {
        **INTEGERS,
        "Broadcast": _expansion,
        "Concat": _joined,
        "FakeQuantize": _levels,
        "GRUSequence": _sequence,
        "Gather": _gather,
        "GatherND": _gather_nd,
        "GroupNormalization": _groups,
        "Interpolate": _factors,
        "LSTMSequence": _sequence,
        "Pad": _edges,
        "RNNSequence": _sequence,
        "Range": _range,
        "ROIAlign": _regions,
        "Reshape": _pattern,
        "ScaledDotProductAttention": _attention,
        "ScatterElementsUpdate": _scatter_elements,
        "Squeeze": _squeezed,
        "TensorIterator": _scanned,
        "Tile": _repeats,
        "TopK": _count,
        "VariadicSplit": _lengths,
    }
)
