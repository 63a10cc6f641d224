"""Values of metrics and configuration keys: the protocol's `Parameter` ↔ Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from headrace.v1 import inference_engine_pb2 as pb


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers from minimum to maximum, both included, in steps."""

    minimum: int
    maximum: int
    step: int = 1


@runtime_checkable
class RangeLike(Protocol):
    """Anything with a range's three attributes."""

    @property
    def minimum(self) -> int: ...
    @property
    def maximum(self) -> int: ...
    @property
    def step(self) -> int: ...


ParameterValue: TypeAlias = str | int | float | bool | list[str] | Range


def decode_parameter(message: pb.Parameter) -> ParameterValue:
    """The value of a parameter.

    Raises:
        ValueError: it holds none.
    """
    kind = message.WhichOneof("value")
    if kind is None:
        raise ValueError("the parameter holds no value")
    if kind == "list_value":
        return list(message.list_value.values)
    if kind == "range_value":
        limits = message.range_value
        return Range(limits.minimum, limits.maximum, limits.step)
    value: str | int | float | bool = getattr(message, kind)
    return value


def encode_parameter(
    value: str | int | float | bool | list[str] | tuple[str, ...] | RangeLike,
) -> pb.Parameter:
    """A parameter holding `value`.

    Raises:
        ValueError: an integer of more than 64 bits.
    """
    match value:
        case bool():  # before int, because a bool is an int too
            return pb.Parameter(bool_value=value)
        case int():
            return pb.Parameter(int_value=value)
        case float():
            return pb.Parameter(float_value=value)
        case str():
            return pb.Parameter(string_value=value)
        case RangeLike():  # before tuple, because the runtime's range is a tuple too
            limits = pb.Range(minimum=value.minimum, maximum=value.maximum, step=value.step)
            return pb.Parameter(range_value=limits)
        case _:
            return pb.Parameter(list_value=pb.StringList(values=value))
