"""Conditions on the inputs of operations in OpenVINO's graph that OpenVINO does not check itself.

A condition is computed in the graph. Its value is int64[n], and each element is 1 or more if the
condition holds for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.graph.empty_tensors import ARITHMETIC, axes_to_guard, is_empty
from headrace.plugins.openvino.guards.attention import ATTENTION, ATTENTION_LAYERS
from headrace.plugins.openvino.guards.casts import CASTS
from headrace.plugins.openvino.guards.indices import INDICES, batches
from headrace.plugins.openvino.guards.integers import INTEGERS, counts, in_floats
from headrace.plugins.openvino.guards.products import PRODUCTS
from headrace.plugins.openvino.guards.sequences import SEQUENCES
from headrace.plugins.openvino.guards.sizes import SIZES
from headrace.plugins.openvino.guards.terms import (
    EMPTY,
    UNLIKE,
    Condition,
    all_hold,
    is_constant,
    sizes_along,
)
from headrace.plugins.openvino.guards.unsigned import without_sign
from headrace.plugins.openvino.guards.windows import WINDOWS
from headrace.plugins.openvino.library import change_readers, openvino, operations
from headrace.plugins.openvino.limits.older_sets import SOFTMAX_OF_ROWS

_FLOAT8: Final = (openvino.Type.f8e4m3, openvino.Type.f8e5m2)


def conditions(operation: openvino.Node, layer: str = "") -> Iterator[Condition]:
    """The conditions that must hold in each run. A condition on constants must hold once. Changes
    inputs of the operation that would crash it otherwise.

    Args:
        layer: the type of the layer that the operation was made for, if it is known.
    """
    for found in (_CONDITIONS.get(operation.get_type_name()), _OF_LAYERS.get(layer)):
        if found is not None:
            yield from found(operation)
    yield from without_sign(operation)
    for source, axes in axes_to_guard(operation):
        yield sizes_along(source, axes), EMPTY


def _range(operation: openvino.Node) -> Iterator[Condition]:
    """With a step of 0 the kernel returns as many elements as in its last run, or divides an
    integer by it and ends the process. So it gets a step of 1."""
    yield from counts(operation)
    step = operation.input_value(2)
    zero, one = (operations.constant(each, step.get_element_type()) for each in (0, 1))
    moves = operations.not_equal(step, zero)
    yield all_hold(moves), "gets a step of 0"
    if not is_constant(step):
        bounded = operations.select(moves, step, one)
        operation.input(2).replace_source_output(bounded.output(0))


def _distinct(operation: openvino.Node) -> Iterator[Condition]:
    """NaN is not equal to itself, so the kernel leaves places of the outputs as they were."""
    values = operation.input_value(0)
    if values.get_element_type().is_real():
        yield all_hold(operations.equal(values, values)), "gets NaN"


def _filled(operation: openvino.Node) -> Iterator[Condition]:
    """The compiler drops it in front of arithmetic, which then takes sizes of 0 for 1. If the
    output never has elements, another operation stands between, which has nothing to compute."""
    yield from SIZES["Broadcast"](operation)
    made = operation.output(0)
    readers = [port.get_node().get_type_name() for port in made.get_target_inputs()]
    if ARITHMETIC.isdisjoint(readers):
        return
    if is_empty(made.get_partial_shape()):
        change_readers(made, operations.absolute)
    else:
        yield operations.convert(operation.input_value(1), "i64"), EMPTY


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


def _rows(operation: openvino.Node) -> Iterator[Condition]:
    """OpenVINO computes along one axis. In older operator sets all axes from that one are meant."""
    if operation.get_type_name() == "Softmax":
        rank, axis = operation.get_input_partial_shape(0).rank, operation.get_attributes()["axis"]
        if rank.is_dynamic or axis not in (-1, rank.get_length() - 1):
            yield operations.constant(np.array([0])), "is a Softmax of several axes"


def _quantised(operation: openvino.Node) -> Iterator[Condition]:
    """The operations of a quantised layer repeat its data if there are more scales or zero points.
    ONNX repeats scales and zero points alone."""
    if operation.get_type_name() in ("Multiply", "Subtract"):
        data, other = operation.input_values()
        yield from _repeated(other, data)


def _dequantised(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel subtracts each zero point. ONNX has only zeros for float8."""
    yield from _quantised(operation)
    if operation.get_type_name() == "Subtract":
        data, zeros = operation.input_values()
        of = data.get_node()
        if of.get_type_name() == "Convert" and of.get_input_element_type(0) in _FLOAT8:
            none = operations.constant(0, zeros.get_element_type())
            yield all_hold(operations.equal(zeros, none)), "gets a zero point other than 0"


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
        **CASTS,
        **INDICES,
        **INTEGERS,
        **PRODUCTS,
        **SEQUENCES,
        **SIZES,
        **WINDOWS,
        "BatchNormInference": _channels,
        "Broadcast": _filled,
        "Concat": _joined,
        "FakeQuantize": _levels,
        "GroupNormalization": _channels,
        "PRelu": _slopes,
        "Range": _range,
        "Unique": _distinct,
    }
)
_OF_LAYERS: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {
        **ATTENTION_LAYERS,
        "ConvInteger": _quantised,
        "DequantizeLinear": _dequantised,
        "GatherND": batches,
        "MatMulInteger": _quantised,
        SOFTMAX_OF_ROWS: _rows,
    }
)
"""Conditions on each operation that was made for a layer of a type."""
