"""Conditions on casts of integers and to integers, under the rules of `conditions`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.graph.magnitudes import magnitude
from headrace.plugins.openvino.guards.integers import WIDE
from headrace.plugins.openvino.guards.terms import Condition, all_hold, follows_values
from headrace.plugins.openvino.library import openvino, operations

_BEYOND: Final[Mapping[str, float]] = MappingProxyType(
    {"i64": 2.0**63, "u32": 2.0**32, "u64": 2.0**64}
)
"""The least number that is too large for a type with more integers than the kernels have."""
_OF_32_BITS: Final = 4


def _cast(operation: openvino.Node) -> Iterator[Condition]:
    source, kind = operation.input_value(0), operation.get_output_element_type(0)
    of = source.get_element_type()
    if not follows_values(source) or of == openvino.Type.boolean:
        return
    if of.is_real():
        yield from _of_floats(source, kind.get_type_name())
    elif not of.is_signed():
        return
    elif kind == openvino.Type.boolean and of.size >= _OF_32_BITS:
        yield from _to_truth(source)
    elif not kind.is_real() and not kind.is_signed() and kind.size >= _OF_32_BITS:
        yield from _to_unsigned(operation)


def _of_floats(source: openvino.Output, kind: str) -> Iterator[Condition]:
    """The kernel has 32 bits with a sign, but the type has more integers. A number that is outside
    both ranges may become any value."""
    if (beyond := _BEYOND.get(kind)) is not None:
        size = magnitude(operations.convert(source, "f32").output(0))
        inside = operations.less(size, np.float32(2**31))
        outside = operations.logical_not(operations.less(size, np.float32(beyond)))  # or NaN
        yield all_hold(operations.logical_or(inside, outside)), WIDE


def _to_truth(source: openvino.Output) -> Iterator[Condition]:
    """The kernel takes the least integer, which has no opposite, for 0."""
    least = np.float32(-(2**31))
    yield all_hold(operations.greater(operations.convert(source, "f32"), least)), WIDE


def _to_unsigned(operation: openvino.Node) -> Iterator[Condition]:
    """A negative integer becomes a large one, which kernels take for the negative one. The network
    returns it right."""
    ports = operation.output(0).get_target_inputs()
    if all(port.get_node().get_type_name() == "Result" for port in ports):
        return
    value = operations.convert(operation.input_value(0), "f32")
    yield all_hold(operations.greater_equal(value, np.float32(0))), WIDE


CASTS: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {"Convert": _cast, "ConvertLike": _cast}
)
