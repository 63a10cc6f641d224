"""Conditions under which OpenVINO's inexact integers are exact enough.

The kernels have integers of 32 bits with a sign. Many kernels compute in float32, which has all
integers up to 2**24. An elementwise operation also computes in float32 if it runs in one kernel
with another operation that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.graph.magnitudes import magnitude
from headrace.plugins.openvino.guards.growth import COMBINED, UPDATES
from headrace.plugins.openvino.guards.terms import Condition, all_hold, follows_values, is_constant
from headrace.plugins.openvino.library import openvino, operations

WIDE: Final = "computes an integer that is too large to be exact on this device"
_IN_FLOATS: Final = 2.0**24 - 1
_IN_32_BITS: Final = 2.0**31 - 2**7
_MOST: Final[Mapping[str, float]] = MappingProxyType(
    {"boolean": 1.0, "i8": 2.0**7, "u8": 2.0**8, "i16": 2.0**15, "u16": 2.0**16}
)
"""The greatest distance from 0 that an integer of each type can have."""
_WHOLE: Final[Mapping[str, float]] = MappingProxyType(
    {"bf16": 2.0**8, "f16": 2.0**11, "f32": 2.0**24}
)
"""Each type has all integers that are less."""
_EXACT: Final = frozenset(
    ["Abs", "Add", "Maximum", "Minimum", "Multiply", "Negative", "Sign", "Subtract"]
)
"""Elementwise operations with kernels for integers of 32 bits."""
_FLOATING: Final = frozenset(
    [
        "Clamp",
        "Divide",
        "Equal",
        "FloorMod",
        "Greater",
        "GreaterEqual",
        "Less",
        "LessEqual",
        "Mod",
        "NotEqual",
        "PRelu",
        "Power",
        "Relu",
        "Select",
        "SquaredDifference",
    ]
)
"""Elementwise operations without kernels for integers, or without them if sizes are not known."""

_JOINING: Final = frozenset(
    [
        "Einsum",
        "MatMul",
        "ReduceL1",
        "ReduceL2",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
    ]
)
"""Other operations whose kernels also compute the elementwise operation that reads their result."""


def in_floats(operation: openvino.Node) -> Iterator[Condition]:
    """The condition that no integer is outside the range in which float32 has all integers."""
    yield from _no_more(operation, _IN_FLOATS)


def counts(operation: openvino.Node) -> Iterator[Condition]:
    """The condition that a Range of integers starts, steps and ends at small ones, constants too.
    The kernel adds up the distance and the step, which may be more than 32 bits have."""
    values = operation.input_values()
    if not _is_integer(operation.output(0)) or all(map(is_constant, values)):
        return
    for value in values:
        if is_constant(value) or follows_values(value):
            yield all_hold(operations.less_equal(_magnitude(value), np.float32(_IN_FLOATS))), WIDE


def _exact(operation: openvino.Node) -> Iterator[Condition]:
    if _runs_in_floats(operation):
        yield from _no_more(operation, _IN_FLOATS)
    elif operation.get_type_name() in COMBINED:
        yield from _in_32_bits(operation)


def _runs_in_floats(operation: openvino.Node) -> bool:
    """Whether OpenVINO may join the operation with another one that computes in float32."""
    seen, stack = {operation.get_name()}, [operation]
    while stack:
        node = stack.pop()
        kind = node.get_type_name()
        if kind in _FLOATING:
            return True
        if kind in _EXACT or (kind == "Convert" and _passes_integers(node)):
            sources = [value.get_node() for value in node.input_values()]
            if any(each.get_type_name() in _JOINING for each in sources):
                return True
            readers = [port.get_node() for port in node.output(0).get_target_inputs()]
            for each in (*sources, *readers):
                if each.get_name() not in seen:
                    seen.add(each.get_name())
                    stack.append(each)
    return False


def _passes_integers(convert: openvino.Node) -> bool:
    return _is_integer(convert.input_value(0)) and _is_integer(convert.output(0))


def _division(operation: openvino.Node) -> Iterator[Condition]:
    divisor = operation.input_value(1)
    kind = divisor.get_element_type()
    if kind.is_integral():
        wide = operations.convert(divisor, "i64")
        yield all_hold(operations.not_equal(wide, np.int64(0))), "divides an integer by 0"
    yield from in_floats(operation)
    if operation.get_type_name() == "FloorMod" and kind.is_signed():
        yield from _multiple(operation)


def _multiple(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel computes the multiple of the divisor that is next to the number. If the signs
    differ, that multiple is farther from 0 than the number."""
    values = operation.input_values()
    if sum(map(_bound, values)) <= _IN_FLOATS or not any(map(follows_values, values)):
        return
    first, second = (operations.convert(each, "f32") for each in values)
    differ = operations.less(operations.multiply(first, second), np.float32(0))
    number, divisor = map(_magnitude, values)
    beyond = operations.subtract(divisor, operations.mod(number, divisor))
    room = operations.subtract(np.float32(_IN_FLOATS + 1), number)
    fits = operations.less_equal(operations.mod(beyond, divisor), room)
    yield all_hold(operations.logical_or(operations.logical_not(differ), fits)), WIDE


def _power(operation: openvino.Node) -> Iterator[Condition]:
    """With a float as its exponent, a power of integers is computed in the exponent's type. An
    integer exponent of a float is rounded to the base's type, and may be odd before and even
    after."""
    yield from in_floats(operation)
    (base, exponent), made = operation.input_values(), operation.output(0)
    converted, whole = exponent.get_node(), _WHOLE.get(exponent.get_element_type().get_type_name())
    rounds = converted.get_type_name() == "Convert" and _is_integer(converted.input_value(0))
    if rounds and whole is not None:
        yield all_hold(operations.less_equal(_magnitude(exponent), np.float32(whole))), WIDE
    casts = [port.get_node() for port in made.get_target_inputs()]
    back = any(each.get_type_name() == "Convert" and _is_integer(each.output(0)) for each in casts)
    cast = base.get_node()
    if back and cast.get_type_name() == "Convert" and _is_integer(cast.input_value(0)):
        most = np.float32(_WHOLE[made.get_element_type().get_type_name()])
        for value in (base, made):
            yield all_hold(operations.less(_magnitude(value), most)), WIDE


def _in_32_bits(operation: openvino.Node) -> Iterator[Condition]:
    """The kernels compute in 32 bits, which is right for types that have no more bits."""
    if operation.get_output_element_type(0).size == 8:
        yield from _no_more(operation, _IN_32_BITS)


def scattered(operation: openvino.Node) -> Iterator[Condition]:
    """The condition that the elements of a scatter stay small. The kernels combine integers in 32
    bits. No result is larger than that of all updates for the largest element."""
    combine = UPDATES.get(operation.get_attributes().get("reduction", "none"))
    data, updates = operation.input_value(0), operation.input_value(2)
    if combine is None or operation.get_output_element_type(0).size < 8:
        return
    first, second = (
        _magnitude(operations.reshape(each, np.array([-1]), special_zero=False).output(0))
        for each in (data, updates)
    )
    made = combine(operations.reduce_max(first, np.int64(0), keep_dims=True), second)
    yield all_hold(operations.less_equal(made, np.float32(_IN_32_BITS))), WIDE


def _no_more(operation: openvino.Node, most: float) -> Iterator[Condition]:
    """The condition computes the result in float32 from values without signs. So no negative term
    can hide an intermediate result that is too large. Values that depend on shapes alone stay
    small."""
    values = [each for each in operation.input_values() if _is_integer(each)]
    makes_floats = operation.get_output_element_type(0).is_real()
    if makes_floats or not any(map(follows_values, values)):
        return
    combine = COMBINED.get(operation.get_type_name())
    if combine is not None:
        found = [combine(operation, *map(_magnitude, operation.input_values()))]
    else:
        compares = operation.get_output_element_type(0) == openvino.Type.boolean
        found = [_magnitude(each) for each in values if not _is_exact(each, most, compares)]
    for made in found:
        yield all_hold(operations.less_equal(made, np.float32(most))), WIDE


def _is_integer(value: openvino.Output) -> bool:
    kind = value.get_element_type()
    return bool(kind.is_integral()) and kind != openvino.Type.boolean


def _magnitude(value: openvino.Output) -> openvino.Node:
    return magnitude(operations.convert(value, "f32").output(0))


def _is_exact(value: openvino.Output, most: float, compares: bool) -> bool:
    """Whether the kernel is known to have the exact value, or to compare it only with numbers that
    are nearer to 0."""
    node = value.get_node()
    if node.get_type_name() != "Constant":
        return _bound(value) <= most
    return compares or bool((node.data.astype(np.float32).astype(np.float64) == node.data).all())


def _bound(value: openvino.Output) -> float:
    """The greatest distance from 0 that the types allow for an element of the value."""
    node = value.get_node()
    most = _MOST.get(value.get_element_type().get_type_name(), inf)
    if node.get_type_name() != "Convert" or node.input_value(0).get_element_type().is_real():
        return most
    return min(most, _bound(node.input_value(0)))


_REDUCING: Final = frozenset(["CumSum", "ReduceProd"])
"""Other operations with kernels for integers of 32 bits."""
INTEGERS: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {
        **dict.fromkeys(_FLOATING, in_floats),
        **dict.fromkeys(_EXACT, _exact),
        **dict.fromkeys(COMBINED.keys() - _EXACT, in_floats),
        **dict.fromkeys(_REDUCING, _in_32_bits),
        "Divide": _division,
        "FloorMod": _division,
        "MaxPool": in_floats,
        "Mod": _division,
        "Power": _power,
        "ReduceMax": in_floats,
        "ReduceMin": in_floats,
        "ReverseSequence": in_floats,
    }
)
