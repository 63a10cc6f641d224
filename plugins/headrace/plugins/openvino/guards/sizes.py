"""Conditions on values that sizes follow from: shapes, lengths, counts, scales and pads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.graph.magnitudes import magnitude
from headrace.plugins.openvino.guards.integers import in_floats
from headrace.plugins.openvino.guards.terms import (
    UNLIKE,
    Condition,
    all_hold,
    follows_values,
    is_constant,
    signed,
    sizes_along,
)
from headrace.plugins.openvino.library import openvino, operations

_REMOVED: Final = "gets an axis to remove whose size is not 1"
_UNFIT: Final = "gets a shape that does not fit the number of elements"
_NEGATIVE: Final = "gets a negative length"
_COUNT: Final = "gets a number of sizes, scales, pads or repeats that is not its number of axes"
_FORGOTTEN: Final = "gets an empty tensor together with sizes that a request gives"
_MOST_PADS: Final = 2**29
_RESIZED: Final = 2
"""How many axes the kernel of cubic interpolation resizes: the last ones."""
_OF_ONE_KERNEL: Final = (3, 4)
"""The numbers of axes for which there is a kernel of cubic interpolation."""
_ROUNDING: Final = 2.0**-20
"""How much two equal products of some sizes may differ in float32, as a part of one of them."""


def _not_forgotten(operation: openvino.Node, *but: int) -> Iterator[Condition]:
    """A kernel whose sizes follow from values remembers the values of its last run, and infers its
    output's shape again if they are others. It does not run without elements. Then it compares with
    values of an earlier run, and may keep the shape of another request. So the operation's data
    must have elements, at least along all axes `but` some. The data is input 0, the values are
    input 1 or, if input 1 is an axis, input 2."""
    data = operation.input_value(0)
    shape = data.get_partial_shape()
    axes = [at for at, size in enumerate(shape) if at not in but and (size.is_dynamic or size == 0)]
    if axes and any(map(follows_values, operation.input_values()[1:])):
        yield sizes_along(data, axes), _FORGOTTEN


def _repeats(operation: openvino.Node) -> Iterator[Condition]:
    """A negative count can end the process: the kernel gets none. Too few leave gaps."""
    given, zero = operation.input_value(1), np.int64(0)
    rank = np.int64(len(operation.get_input_partial_shape(0)))
    yield all_hold(operations.equal(sizes_along(given, [0]), rank)), _COUNT
    repeats = signed(given)
    yield operations.add(operations.minimum(repeats, zero), np.int64(1)), _NEGATIVE
    yield from _not_forgotten(operation)
    if follows_values(given):
        bounded = operations.maximum(repeats, zero)
        operation.input(1).replace_source_output(bounded.output(0))


def _factors(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel ignores sizes or scales beyond the number of axes. The kernel of cubic
    interpolation resizes only the last two axes. Along the other axes it reads elements that are
    not there, or leaves elements unwritten."""
    rank = operation.get_input_partial_shape(0).rank.get_length()
    axes = operation.input_value(2) if operation.get_input_size() > 2 else None
    count = operations.constant(np.array([rank])) if axes is None else sizes_along(axes, [0])
    fits = operations.equal(sizes_along(operation.input_value(1), [0]), count)
    yield all_hold(fits), _COUNT
    if operation.get_attributes()["mode"] == "cubic" and rank in _OF_ONE_KERNEL:
        others = list(range(rank - _RESIZED))
        sizes = (
            sizes_along(each, others) for each in (operation.input_value(0), operation.output(0))
        )
        yield (
            all_hold(operations.equal(*sizes)),
            "resizes more than the last two axes by mode=cubic",
        )
    yield from in_floats(operation)
    yield from _not_forgotten(operation)


def _count(operation: openvino.Node) -> Iterator[Condition]:
    """Checks the count that the request gives. `repairs` has bounded it in the graph."""
    bounded = operation.input_value(1).get_node()
    if bounded.get_type_name() == "Maximum":
        bounded = bounded.input_value(0).get_node()
    given, there = bounded.input_values()
    yield (
        all_hold(operations.less_equal(given, there)),
        "gets a count that is larger than the number of elements",
    )
    yield from _not_forgotten(operation)


def _pads(operation: openvino.Node) -> Iterator[Condition]:
    """Negative pads cut elements off. If they cut off more than an axis has, the kernel reads and
    writes outside of its memory, so it gets bounded pads. Unless the kernel pads by a constant, it
    may pad by elements that it has cut off. So enough elements must be left. A single pad would be
    repeated for all axes. The sum of two and a size must be one of the integers of 32 bits in which
    sizes are computed."""
    data, begin, end = operation.input_values()[:3]
    rank = operations.constant(np.array([len(data.get_partial_shape())]))
    for each in (begin, end):
        yield all_hold(operations.equal(sizes_along(each, [0]), rank)), _COUNT
    nodes = begin.get_node(), end.get_node()
    if all(each.get_type_name() == "Constant" and each.data.min(initial=0) >= 0 for each in nodes):
        return
    zero, axes = np.int64(0), range(len(data.get_partial_shape()))
    given = [operations.convert(each, "i64") for each in (begin, end)]
    few = [operations.less_equal(each, np.int64(_MOST_PADS)) for each in given]
    yield all_hold(operations.logical_and(*few)), "gets too many pads"
    bounded = [operations.select(*each, zero) for each in zip(few, given, strict=True)]
    sizes = sizes_along(data, list(axes)) if axes else operations.constant(np.zeros(0, np.int64))
    first = operations.maximum(bounded[0], operations.negative(sizes))
    left = operations.add(sizes, operations.minimum(first, zero))
    last = operations.maximum(bounded[1], operations.negative(left))
    kept = operations.add(
        sizes, operations.add(*(operations.minimum(each, zero) for each in bounded))
    )
    mode = operation.get_attributes()["pad_mode"]
    holds = operations.add(kept, np.int64(1)) if mode == "constant" else kept
    if mode == "reflect":
        holds = operations.subtract(kept, operations.maximum(operations.maximum(first, last), zero))
    if not is_constant(holds.output(0)):
        operation.input(1).replace_source_output(first.output(0))
        operation.input(2).replace_source_output(last.output(0))
    yield holds, "gets pads that cut off too many elements"


def _lengths(operation: openvino.Node) -> Iterator[Condition]:
    """To OpenVINO a length of -1 means all elements that are left. The reader of ONNX itself uses
    this length. A request must not, and with it the kernel would read outside of an empty tensor.
    So the kernel gets no negative lengths."""
    data, axis, lengths = operation.input_values()
    if not follows_values(lengths):
        return
    given, zero = signed(lengths), np.int64(0)
    yield operations.add(operations.minimum(given, zero), np.int64(1)), _NEGATIVE
    along = int(axis.get_node().data.item())
    along %= len(data.get_partial_shape())
    made = operations.reduce_sum(given, zero, keep_dims=True)
    yield (
        all_hold(operations.equal(made, sizes_along(data, [along]))),
        "gets lengths whose sum is not the size of the axis",
    )
    yield from _not_forgotten(operation, along)
    bounded = operations.maximum(given, zero)
    operation.input(2).replace_source_output(bounded.output(0))


def _pattern(operation: openvino.Node) -> Iterator[Condition]:
    """OpenVINO's compiler turns the only size of the result that it does not know into -1. So the
    kernel does not compare that size with the number of elements. This also happens to sizes that
    follow from another tensor's shape."""
    yield from _not_zero(operation)
    data, pattern = operation.input_value(0), operation.input_value(1)
    known, made = data.get_partial_shape(), operation.get_output_partial_shape(0)
    if known.is_static and made.is_static and np.prod(known.to_shape()) != np.prod(made.to_shape()):
        yield operations.constant(np.array([0])), _UNFIT  # it does not count where there are zeros
    if _may_be_inferred(data.get_partial_shape(), operation.get_output_partial_shape(0)):
        if not _infers(pattern.get_node()) and not is_constant(pattern):
            yield _fits(operation), _UNFIT
    elif follows_values(pattern):
        given, nothing = signed(pattern), np.int64(0)
        yield operations.add(operations.minimum(given, nothing), np.int64(2)), _NEGATIVE


def _not_zero(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel remembers zeros before its first run. If its data is constant and it gets zeros
    then, it does not infer its output's shape, and fails. So a zero, which means the size of the
    data, becomes that size."""
    data, pattern = operation.input_value(0), operation.input_value(1)
    shape, count = data.get_partial_shape(), pattern.get_partial_shape()
    if shape.is_dynamic or count.is_dynamic or is_constant(pattern):
        return
    if 0 in shape.to_shape():
        yield operations.constant(np.array([0])), "gets another shape for no elements in each run"
    if operation.get_attributes()["special_zero"]:
        places = count[0].get_length()
        sizes = np.array([*shape.to_shape(), *[0] * places][:places])
        known = operations.constant(sizes, pattern.get_element_type())
        given = operations.equal(pattern, operations.constant(0, pattern.get_element_type()))
        operation.input(1).replace_source_output(operations.select(given, known, pattern).output(0))


def _may_be_inferred(data: openvino.PartialShape, made: openvino.PartialShape) -> bool:
    """Whether the compiler may replace one size of the result by -1. It keeps a size that is the
    size of the data along the same axis."""
    if made.rank.is_dynamic or made.is_static:
        return False
    kept = len(data) if data.rank.is_static else 0
    beside = [at < kept and bool(data[at].is_dynamic) for at in range(len(made))]
    others = [size.is_dynamic and not by for size, by in zip(made, beside, strict=True)]
    return others.count(True) <= 1


def _infers(pattern: openvino.Node) -> bool:
    """Whether the pattern is known to have a -1, which the kernel computes and checks."""
    nodes = [value.get_node() for value in pattern.input_values()]
    joined = pattern.get_type_name() == "Concat"
    return joined and any(
        each.get_type_name() == "Constant" and each.data.min(initial=0) < 0 for each in nodes
    )


def _fits(operation: openvino.Node) -> openvino.Node:
    """Whether the sizes have one -1, or as many elements as the data."""
    data, pattern = operation.input_value(0), operation.input_value(1)
    sizes, zero = signed(pattern), np.int64(0)
    of_data = operations.shape_of(data, "i64")
    if operation.get_attributes()["special_zero"]:  # a 0 is the size of the data
        count, kept = pattern.get_partial_shape()[0].get_length(), of_data
        rank = data.get_partial_shape().rank
        if rank.is_dynamic or rank.get_length() != count:
            begin, end, step = (operations.constant(np.array([each])) for each in (0, count, 1))
            ones = operations.constant(np.ones(count, np.int64))
            kept = operations.slice(operations.concat([of_data, ones], 0), begin, end, step)
        sizes = operations.select(operations.equal(sizes, zero), kept, sizes)
    least = operations.reduce_min(sizes, zero, keep_dims=True)
    counts = (operations.convert(each, "f32") for each in (sizes, of_data))
    made, there = (operations.reduce_prod(each, zero, keep_dims=True) for each in counts)
    apart = magnitude(operations.subtract(made, there).output(0))
    rounding = operations.multiply(there, np.float32(_ROUNDING))
    whole = operations.logical_and(
        operations.greater_equal(least, zero), operations.less_equal(apart, rounding)
    )
    return all_hold(operations.logical_or(operations.equal(least, np.int64(-1)), whole))


def _expansion(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel does not check the given sizes if it knows the sizes of the result."""
    data, target = operation.input_value(0), operation.input_value(1)
    shape, count = data.get_partial_shape(), target.get_partial_shape()
    mode = operation.get_attributes()["mode"]
    checked = is_constant(target) or operation.get_output_partial_shape(0).is_dynamic
    if mode == "explicit" or shape.rank.is_dynamic or count.is_dynamic:
        return
    if checked and not follows_values(target):
        return
    both = min(len(shape), count[0].get_length())
    if both:
        given = operations.gather(signed(target), np.arange(-both, 0), np.int64(0))
        sizes, one = sizes_along(data, list(range(len(shape) - both, len(shape)))), np.int64(1)
        holds = operations.logical_or(operations.equal(sizes, one), operations.equal(sizes, given))
        if mode == "bidirectional":
            holds = operations.logical_or(holds, operations.equal(given, one))
        yield all_hold(holds), UNLIKE


def _cut(operation: openvino.Node) -> Iterator[Condition]:
    """With constant bounds and steps, the kernel infers its output's shape only once. It does not
    do so again for other axes."""
    bounds, axes = operation.input_values()[1:4], operation.input_values()[4:]
    if any(map(follows_values, axes)) and not any(map(follows_values, bounds)):
        yield operations.constant(np.array([0])), "takes axes from a request for constant bounds"


def _squeezed(operation: openvino.Node) -> Iterator[Condition]:
    """OpenVINO keeps an axis whose size is known not to be 1. The kernel does not check axes from a
    request if it knows the sizes. It gets no axis 0: see `_not_zero`."""
    if operation.get_input_size() == 1:
        return
    data, axes = operation.input_values()
    shape, known = data.get_partial_shape(), axes.get_node()
    if known.get_type_name() == "Constant":
        sizes = [shape[axis] for axis in known.data.ravel().tolist() if shape.rank.is_static]
        if any(size.is_static and size != 1 for size in sizes):
            yield operations.constant(np.array([0])), _REMOVED
        elif any(size.is_dynamic for size in sizes):  # the compiler may drop it with an Unsqueeze
            along = operations.gather(operations.shape_of(data, "i64"), axes, np.int64(0))
            yield all_hold(operations.equal(along, np.int64(1))), _REMOVED
        return
    rank, zero = np.int64(len(shape)), np.int64(0)
    given = signed(axes)
    last = operations.subtract(given, rank)
    counted = operations.select(operations.greater_equal(given, zero), last, given)
    bounded = operations.minimum(operations.maximum(counted, -rank), np.int64(-1))
    operation.input(1).replace_source_output(bounded.output(0))
    along = operations.gather(operations.shape_of(data, "i64"), bounded, zero)
    single = operations.equal(along, np.int64(1))
    yield all_hold(operations.logical_and(single, operations.equal(bounded, counted))), _REMOVED


SIZES: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {
        "Broadcast": _expansion,
        "Interpolate": _factors,
        "Pad": _pads,
        "Reshape": _pattern,
        "Slice": _cut,
        "Squeeze": _squeezed,
        "Tile": _repeats,
        "TopK": _count,
        "VariadicSplit": _lengths,
    }
)
