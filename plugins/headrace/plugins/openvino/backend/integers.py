"""Bounds of the integers that a network computes.

OpenVINO has integers in 32 bits, and computes many operations on them in float32, which has all
integers up to two to the power of 24. In 8 and 16 bits its kernels saturate, where ONNX drops the
upper bits. So a network is run only if no integer can be beyond that. Interval arithmetic shows it
before a run, from a bound on the integers that a request gives, and that are made of its
floating-point numbers: R. E. Moore, Interval Analysis, 1966.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Final, TypeAlias

from headrace.plugins.openvino.backend.operations import constants, is_data
from headrace.plugins.openvino.library import openvino

Interval: TypeAlias = tuple[int, int]

BOUNDS: Final = (2**24, 2**20, 2**16, 2**12)
"""The bounds on a request's integers that are tried, one after the other."""
_MOST: Final = 2**24
_BITS: Final[Mapping[str, int]] = MappingProxyType({"i8": 7, "u8": 8, "i16": 15, "u16": 16})
"""The value bits of types in which kernels saturate, and so of types that need no other bound."""

_PASSING: Final = frozenset(
    [
        "Broadcast",
        "Concat",
        "DepthToSpace",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "OneHot",
        "Pad",
        "ReduceMax",
        "ReduceMin",
        "Relu",
        "Reshape",
        "Result",
        "ScatterElementsUpdate",
        "ScatterNDUpdate",
        "Select",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "StridedSlice",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "VariadicSplit",
    ]
)
"""Operations that give elements of their inputs, or 0."""
_COMPARING: Final = frozenset(
    [
        "Equal",
        "Greater",
        "GreaterEqual",
        "Less",
        "LessEqual",
        "Maximum",
        "Minimum",
        "NotEqual",
    ]
)
_ELEMENTS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(("Gather", "GatherElements", "GatherND"), (0,)),
        **dict.fromkeys(("ScatterElementsUpdate", "ScatterNDUpdate"), (0, 2)),
        "OneHot": (2, 3),
        "Select": (1, 2),
    }
)
"""The inputs whose elements an operation gives, where others are indices or conditions."""


def why_not(model: openvino.Model, bound: int) -> Iterator[tuple[openvino.Node, str]]:
    """The operations on integers that are not run, each with the reason.

    Args:
        model: with known sizes.
        bound: the farthest from 0 that an integer of a request is, and one that a cast makes of a
            floating-point number.
    """
    fixed = constants(model)
    known: dict[tuple[str, int], Interval | None] = {}
    for operation in model.get_ordered_ops():
        ports = [
            (each.get_node().get_name(), each.get_index()) for each in operation.input_values()
        ]
        given = [known.get(port) for port in ports]
        reason = None
        for output in filter(is_integer, operation.outputs()):
            found = _interval(operation, output, given, bound)
            kind = output.get_element_type().get_type_name()
            known[operation.get_name(), output.get_index()] = found
            if found is None:
                reason = "it computes integers, and how large they get is not known"
            elif kind in _BITS and not _fits(found, kind):
                reason = f"its integers may need more than the bits of {kind}"
        for port, source, interval in zip(operation.inputs(), ports, given, strict=True):
            if operation.get_type_name() in _COMPARING and source[0] in fixed:
                continue  # a number that is farther from 0 than all others compares right
            if interval is not None and is_data(port) and max(map(abs, interval)) > _MOST:
                reason = f"it may get integers beyond {_MOST:,}, which are not exact"
        unknown = any(port in known and known[port] is None for port in ports)  # told before
        if reason is not None and not unknown and operation.get_name() not in fixed:
            yield operation, reason


def is_integer(value: openvino.Output) -> bool:
    """Whether the value has integers."""
    kind = value.get_element_type()
    return bool(kind.is_integral()) and kind != openvino.Type.boolean


def needs_bound(value: openvino.Output) -> bool:
    """Whether the value has integers that its type does not keep small."""
    return is_integer(value) and value.get_element_type().get_type_name() not in _BITS


def _fits(interval: Interval, kind: str) -> bool:
    least = 0 if kind.startswith("u") else -(2 ** _BITS[kind])
    return least <= interval[0] and interval[1] < 2 ** _BITS[kind]


def _of_type(kind: str, bound: int) -> Interval:
    most = 2 ** _BITS[kind] - 1 if kind in _BITS else bound
    return (0 if kind.startswith("u") else -most - (kind in _BITS)), most


def _interval(
    operation: openvino.Node,
    output: openvino.Output,
    given: Sequence[Interval | None],
    bound: int,
) -> Interval | None:
    """The integers of the output; None if they are not known."""
    kind, element = operation.get_type_name(), output.get_element_type().get_type_name()
    if kind == "Constant":
        data = operation.data
        return (int(data.min()), int(data.max())) if data.size else (0, 0)
    if kind == "Parameter":
        return _of_type(element, bound)
    if kind in ("Convert", "ConvertLike"):
        source = operation.input_value(0).get_element_type()
        if source == openvino.Type.boolean:
            return 0, 1
        return _of_type(element, bound) if source.is_real() else given[0]
    if kind in ("TopK", "MaxPool") and output.get_index() == 1:
        return 0, prod(operation.get_input_shape(0))
    if kind == "Clamp":
        limits = operation.get_attributes()
        return int(limits["min"]), int(limits["max"])
    if operation.get_attributes().get("reduction", "none") != "none":
        return None
    chosen = _ELEMENTS.get(kind, [port.get_index() for port in operation.inputs() if is_data(port)])
    known = [found for at in chosen if at < len(given) and (found := given[at]) is not None]
    if len(known) < len(chosen) or not known:
        return None
    if kind in _PASSING or kind in ("TopK", "MaxPool"):
        return min(0, *(low for low, _ in known)), max(0, *(high for _, high in known))
    combine = _COMBINED.get(kind)
    if combine is not None:
        return combine(*known)
    if kind in ("ReduceSum", "CumSum"):
        count = prod(operation.get_input_shape(0)) // max(1, prod(operation.get_output_shape(0)))
        if kind == "CumSum":
            count = max(operation.get_input_shape(0), default=1)
        low, high = known[0]
        return min(low, low * count), max(high, high * count)
    return None


def _products(one: Interval, other: Interval) -> Interval:
    found = [a * b for a in one for b in other]
    return min(found), max(found)


def _quotient(one: Interval, other: Interval) -> Interval | None:
    """None if the divisor may be 0."""
    most = max(map(abs, one)) // other[0] if other[0] > 0 else None
    return None if most is None else (-most if one[0] < 0 else 0, most)


def _rest(one: Interval, other: Interval) -> Interval | None:
    most = other[1] - 1
    return (-most if one[0] < 0 else 0, most) if other[0] > 0 else None


def _distance(one: Interval) -> Interval:
    return 0, max(map(abs, one))


_COMBINED: Final[Mapping[str, Callable[..., Interval | None]]] = MappingProxyType(
    {
        "Abs": _distance,
        "Add": lambda one, other: (one[0] + other[0], one[1] + other[1]),
        "Divide": _quotient,
        "FloorMod": _rest,
        "Maximum": lambda one, other: (max(one[0], other[0]), max(one[1], other[1])),
        "Minimum": lambda one, other: (min(one[0], other[0]), min(one[1], other[1])),
        "Mod": _rest,
        "Multiply": _products,
        "Negative": lambda one: (-one[1], -one[0]),
        "Sign": lambda _: (-1, 1),
        "Subtract": lambda one, other: (one[0] - other[1], one[1] - other[0]),
    }
)
