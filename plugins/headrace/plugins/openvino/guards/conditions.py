"""What must hold of the values that an operation of OpenVINO's graph takes, where OpenVINO does not
look at them itself.

A condition is computed in the graph: int64[n], each element 1 or more where it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.plugins.openvino.graph.empty_tensors import axes_to_guard
from headrace.plugins.openvino.library import openvino, operations

Condition: TypeAlias = tuple[openvino.Node, str]
"""The values, and what the layer does if one of them is less than 1."""

EMPTY: Final = "would make elements of a tensor that has none"
ALWAYS: Final = np.array([2**31 - 1])
"""A value of a condition that holds."""

_INDEX: Final = "gets an index that is out of bounds"
_NEGATIVE: Final = "gets a negative length"
_WIDE: Final = "makes an integer that the device cannot compute exactly"
_SEQUENCES: Final[Mapping[str, int]] = MappingProxyType(
    {"GRUSequence": 2, "LSTMSequence": 3, "RNNSequence": 2}
)
"""Operations over sequences, and which of their inputs says how long each sequence is."""


def conditions(operation: openvino.Node) -> Iterator[Condition]:
    """What must hold in each run, or of constants once. Changes what would crash otherwise."""
    found = _CONDITIONS.get(operation.get_type_name())
    if found is not None:
        yield from found(operation)
    for source, axes in axes_to_guard(operation):
        yield _sizes(source, axes), EMPTY


def is_constant(output: openvino.Output) -> bool:
    """Whether the value is the same in every run."""
    return not any(_is_source(each) or _is_shape(each) for each in _ancestors(output))


def _sizes(source: openvino.Output, axes: list[int]) -> openvino.Node:
    """The sizes along the axes; the least of all, where no axis is given."""
    shape = source.get_partial_shape()
    known = [shape[axis] for axis in axes] if shape.rank.is_static else []
    if known and all(size.is_static for size in known):
        return operations.constant(np.array([size.get_length() for size in known]))
    sizes = operations.shape_of(source, "i64")
    if axes:
        return operations.gather(sizes, np.array(axes), np.int64(0))
    bounded = operations.concat([sizes, operations.constant(ALWAYS)], 0)
    return operations.reduce_min(bounded, np.array([0]), keep_dims=True)


def _size(operation: openvino.Node, at: int) -> openvino.Node:
    """The size of the operation's data along the axis that is its input `at`."""
    return _sizes(operation.input_value(0), [operation.input_value(at).get_node().data.item()])


def _all(holds: openvino.Node) -> openvino.Node:
    axes = np.arange(holds.get_output_partial_shape(0).rank.get_length())
    whether = operations.reduce_logical_and(holds, axes, keep_dims=False)
    return operations.unsqueeze(operations.convert(whether, "i64"), np.int64(0))


def _inside(indices: openvino.Node, sizes: openvino.Node) -> openvino.Node:
    """ONNX counts negative indices from the end."""
    low = operations.greater_equal(indices, operations.negative(sizes))
    return _all(operations.logical_and(low, operations.less(indices, sizes)))


def _signed(output: openvino.Output) -> openvino.Node:
    """The value in int64, as OpenVINO's reader of ONNX has indices in most cases anyway; of a
    constant no more than its least and greatest element."""
    node = output.get_node()
    if node.get_type_name() == "Constant" and node.data.size:
        return operations.constant(np.array([node.data.min(), node.data.max()], np.int64))
    if output.get_element_type() == openvino.Type.i64:
        return output
    return operations.convert(output, "i64")


def _gather(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel gives zero, and of an axis without elements what the memory held before."""
    yield _inside(_signed(operation.input_value(1)), _size(operation, 2)), _INDEX


def _regions(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel leaves regions alone from the first one on that has the image -1."""
    images = _signed(operation.input_value(2))
    low = operations.greater_equal(images, np.int64(0))
    inside = operations.less(images, _sizes(operation.input_value(0), [0]))
    yield _all(operations.logical_and(low, inside)), _INDEX


def _scatter_elements(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel writes before the tensor where an index is too far below zero."""
    yield _bounded(operation, _size(operation, 3)), _INDEX


def _gather_nd(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel reads whatever memory an index leads to."""
    first = int(operation.get_attributes()["batch_dims"])
    count = operation.get_input_partial_shape(1)[-1].get_length()
    sizes = _sizes(operation.input_value(0), list(range(first, first + count)))
    yield _bounded(operation, sizes), _INDEX


def _bounded(operation: openvino.Node, sizes: openvino.Node) -> openvino.Node:
    """Whether the indices that are the operation's input 1 are inside. It gets such as are."""
    zero, one = np.int64(0), np.int64(1)
    given = operations.convert(operation.input_value(1), "i64")
    back = operations.select(operations.less(given, zero), sizes, zero)
    last = operations.subtract(sizes, one)
    bounded = operations.minimum(operations.add(given, back), last)
    operation.input(1).replace_source_output(operations.maximum(bounded, zero).output(0))
    return _inside(given, sizes)


def _division(operation: openvino.Node) -> Iterator[Condition]:
    divisor = operation.input_value(1)
    if divisor.get_element_type().is_integral():
        zero = operations.constant(0, divisor.get_element_type())
        yield _all(operations.not_equal(divisor, zero)), "divides an integer by 0"


def _in_floats(operation: openvino.Node) -> Iterator[Condition]:
    """The kernels compute integers in float32, which has all of them up to 2**24. A sum beyond
    may be rounded to that."""
    yield from _no_more(operation, 2.0**24 - 1)


def _in_32_bits(operation: openvino.Node) -> Iterator[Condition]:
    """The kernels drop all but 32 bits, which is right of types that have no more."""
    if operation.get_output_element_type(0).size == 8:
        yield from _no_more(operation, 2.0**31 - 2**7)


def _no_more(operation: openvino.Node, most: float) -> Iterator[Condition]:
    """The result is computed in float32 without signs, so that nothing makes up for what went
    beyond on the way. What comes of shapes alone stays small."""
    of_integers = operation.get_output_element_type(0).is_integral()
    if of_integers and any(_is_source(each) for each in _ancestors(operation.output(0))):
        magnitude = _MAGNITUDES[operation.get_type_name()]
        made = magnitude(operation, *map(_magnitude, operation.input_values()))
        yield _all(operations.less_equal(made, np.float32(most))), _WIDE


def _magnitude(value: openvino.Output) -> openvino.Node:
    return operations.absolute(operations.convert(value, "f32"))


def _product(
    operation: openvino.Node, first: openvino.Node, second: openvino.Node
) -> openvino.Node:
    turned = operation.get_attributes()
    return operations.matmul(first, second, turned["transpose_a"], turned["transpose_b"])


def _sum(operation: openvino.Node, values: openvino.Node, _: openvino.Node) -> openvino.Node:
    return operations.reduce_sum(values, operation.input_value(1))


def _repeats(operation: openvino.Node) -> Iterator[Condition]:
    repeats = _signed(operation.input_value(1))
    yield operations.add(operations.minimum(repeats, np.int64(0)), np.int64(1)), _NEGATIVE


def _factors(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel leaves those beyond the axes alone."""
    rank = operation.get_input_partial_shape(0).rank.get_length()
    axes = operation.input_value(2) if operation.get_input_size() > 2 else None
    count = operations.constant(np.array([rank])) if axes is None else _sizes(axes, [0])
    fits = operations.equal(_sizes(operation.input_value(1), [0]), count)
    yield _all(fits), "gets another count of sizes or scales than it has axes"


def _count(operation: openvino.Node) -> Iterator[Condition]:
    """`repairs` has bounded it."""
    bounded = operation.input_value(1).get_node()
    if bounded.get_type_name() == "Maximum":
        bounded = bounded.input_value(0).get_node()
    given, there = bounded.input_values()
    yield _all(operations.less_equal(given, there)), "gets a larger count than there are elements"


def _edges(operation: openvino.Node) -> Iterator[Condition]:
    """Where nothing is left of an axis, the kernel repeats what it has cut away."""
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
    """A length of -1 is what is left, which the reader of ONNX makes use of itself."""
    lengths = operation.input_value(2)
    if any(_is_source(each) for each in _ancestors(lengths)):
        least = operations.minimum(_signed(lengths), np.int64(0))
        yield operations.add(least, np.int64(1)), _NEGATIVE


def _pattern(operation: openvino.Node) -> Iterator[Condition]:
    """A single size that does not fit the kernel takes for -1, unless it is positive."""
    data, pattern = operation.input_value(0), operation.input_value(1)
    if not any(_is_source(each) for each in _ancestors(pattern)):
        return
    sizes, nothing = _signed(pattern), np.int64(0)
    if pattern.get_partial_shape() == openvino.PartialShape([1]):
        of_data = operations.shape_of(data, "i64")
        if operation.get_attributes()["special_zero"]:
            kept = operations.gather(of_data, nothing, nothing)
            sizes = operations.select(operations.equal(sizes, nothing), kept, sizes)
        count = operations.reduce_prod(of_data, nothing, keep_dims=True)
        fits = operations.equal(sizes, count)
        holds = operations.logical_or(fits, operations.equal(sizes, np.int64(-1)))
        yield _all(holds), "gets a shape that does not fit the elements"
    else:
        yield operations.add(operations.minimum(sizes, nothing), np.int64(2)), _NEGATIVE


def _sequence(operation: openvino.Node) -> Iterator[Condition]:
    given = operation.input_value(_SEQUENCES[operation.get_type_name()])
    if any(_is_shape(each) for each in _ancestors(given)):
        return  # the reader of ONNX says that all are as long as the tensor
    lengths, longest = _signed(given), _sizes(operation.input_value(0), [1])
    bounded = operations.logical_and(
        operations.greater_equal(lengths, np.int64(0)), operations.less_equal(lengths, longest)
    )
    yield _all(bounded), "gets a length of a sequence that is out of bounds"


def _ancestors(output: openvino.Output) -> Iterator[openvino.Node]:
    """The operations that the value comes from, as far as shapes, which say nothing of values."""
    seen: set[str] = set()
    stack = [output.get_node()]
    while stack:
        node = stack.pop()
        if node.get_name() not in seen:
            seen.add(node.get_name())
            yield node
            if not _is_shape(node):
                stack += [port.get_source_output().get_node() for port in node.inputs()]


def _is_shape(node: Any) -> bool:
    return str(node.get_type_name()) == "ShapeOf"


def _is_source(node: Any) -> bool:
    return str(node.get_type_name()) in ("Parameter", "ReadValue", "RandomUniform")


_MAGNITUDES: Final[Mapping[str, Callable[..., openvino.Node]]] = MappingProxyType(
    {
        "Add": lambda _, *values: operations.add(*values),
        "MatMul": _product,
        "Multiply": lambda _, *values: operations.multiply(*values),
        "Power": lambda _, *values: operations.power(*values),
        "ReduceMean": _sum,
        "ReduceSum": _sum,
        "Subtract": lambda _, *values: operations.add(*values),
    }
)
_CONDITIONS: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {
        "Add": _in_32_bits,
        "Divide": _division,
        "FloorMod": _division,
        "GRUSequence": _sequence,
        "Gather": _gather,
        "GatherND": _gather_nd,
        "Interpolate": _factors,
        "LSTMSequence": _sequence,
        "MatMul": _in_floats,
        "Mod": _division,
        "Multiply": _in_32_bits,
        "Pad": _edges,
        "Power": _in_floats,
        "RNNSequence": _sequence,
        "ReduceMean": _in_floats,
        "ReduceSum": _in_floats,
        "ROIAlign": _regions,
        "Reshape": _pattern,
        "ScatterElementsUpdate": _scatter_elements,
        "Subtract": _in_32_bits,
        "Tile": _repeats,
        "TopK": _count,
        "VariadicSplit": _lengths,
    }
)
