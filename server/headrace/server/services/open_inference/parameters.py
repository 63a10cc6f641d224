"""The parameters of a request, its inputs and its outputs. Unknown parameters are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from headrace.runtime.errors import did_you_mean
from headrace.runtime.execution.job import Sequence
from headrace.server.serving.call import InferCall, RegionPart, WantedOutput
from headrace.wire.codec import CodecError
from headrace.wire.request import MAX_ID_LENGTH, MAX_PRIORITY, MAX_TIMEOUT_SECONDS

Parameter: TypeAlias = bool | int | float | str

LOWEST_PRIORITY: Final = 2 * MAX_PRIORITY + 1
"""The protocol's priorities go from 1, the highest, to this. 0 is the default."""

MAX_CLASSES: Final = 1 << 16

_REGION = "shared_memory_region"
_OFFSET = "shared_memory_offset"
_BYTE_SIZE = "shared_memory_byte_size"
_SHARED = (_REGION, _OFFSET, _BYTE_SIZE)
_CONTENT_TYPE = "content_type"  # for MLServer's clients, not for the server
_EMPTY_FINAL = "triton_enable_empty_final_response"
_OF_REQUEST = (
    _CONTENT_TYPE,
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "binary_data_output",
    _EMPTY_FINAL,
)
_OF_INPUT = (_CONTENT_TYPE, *_SHARED, "binary_data_size")
_OF_OUTPUT = (_CONTENT_TYPE, *_SHARED, "classification", "binary_data")


class RequestParameters(NamedTuple):
    """The parameters of a whole request. `InferCall` says what they mean."""

    priority: int = 0
    timeout_seconds: float = 0.0
    sequence: Sequence | None = None
    binary_outputs: bool = False


NO_PARAMETERS: Final = RequestParameters()


def request_parameters(parameters: Mapping[str, Parameter]) -> RequestParameters:
    """
    Raises:
        CodecError: a parameter is unknown, or its value is invalid.
    """
    _check_known(parameters, _OF_REQUEST)
    _boolean(parameters, _EMPTY_FINAL)  # every response on a stream says that it is the last
    return RequestParameters(
        _priority(_integer(parameters, "priority")),
        _timeout(_integer(parameters, "timeout")),
        _sequence(parameters),
        _boolean(parameters, "binary_data_output") or False,
    )


def call_parameters(call: InferCall) -> dict[str, bool | int | str]:
    """The parameters that `request_parameters` has read, apart from those about the reply."""
    parameters: dict[str, bool | int | str] = {}
    if call.priority:
        parameters["priority"] = MAX_PRIORITY + 1 - call.priority
    if call.timeout_seconds:
        parameters["timeout"] = round(call.timeout_seconds * 1e6)
    if call.sequence is not None:
        identifier, start, end, *_ = call.sequence
        parameters |= {"sequence_id": identifier, "sequence_start": start, "sequence_end": end}
    return parameters


def input_parameters(
    name: str, parameters: Mapping[str, Parameter]
) -> tuple[RegionPart | None, int | None]:
    """An input's region of shared memory, and how many of its bytes lie behind the JSON of REST.

    Raises:
        CodecError: as `request_parameters`.
    """
    _check_known(parameters, _OF_INPUT)
    region, size = _region("inputs", name, parameters), _integer(parameters, "binary_data_size")
    if region is not None and size is not None:
        raise _bad("binary_data_size", f"cannot be given beside {_REGION}")
    return region, size


def wanted_of(name: str, parameters: Mapping[str, Parameter]) -> WantedOutput:
    """What is wanted of an output.

    Raises:
        CodecError: as `request_parameters`.
    """
    _check_known(parameters, _OF_OUTPUT)
    region = _region("outputs", name, parameters)
    classes = _integer(parameters, "classification") or 0
    if classes > MAX_CLASSES:
        raise _bad("classification", f"is {classes}; at most {MAX_CLASSES} classes are returned")
    if region is not None and classes:
        raise _bad("classification", "cannot be written to shared memory; leave one of them out")
    return WantedOutput(classes, region, _boolean(parameters, "binary_data"))


def _check_known(parameters: Mapping[str, Parameter], known: tuple[str, ...]) -> None:
    for name in parameters:
        if name not in known:
            raise _bad(name[:100], f"is not a parameter here{did_you_mean(name[:100], known)}")


def _priority(number: int | None) -> int:
    if not number:
        return 0
    if number > LOWEST_PRIORITY:
        message = f"is {number}; give 1 (first) to {LOWEST_PRIORITY} (last), or 0 for the default"
        raise _bad("priority", message)
    return MAX_PRIORITY + 1 - number


def _timeout(microseconds: int | None) -> float:
    seconds = (microseconds or 0) / 1e6
    if seconds > MAX_TIMEOUT_SECONDS:
        message = f"is {microseconds}; give at most {MAX_TIMEOUT_SECONDS * 1e6:.0f} microseconds"
        raise _bad("timeout", message)
    return seconds


def _sequence(parameters: Mapping[str, Parameter]) -> Sequence | None:
    identifier = parameters.get("sequence_id", 0)
    start, end = _boolean(parameters, "sequence_start"), _boolean(parameters, "sequence_end")
    if isinstance(identifier, bool | float):
        raise _bad("sequence_id", "takes a whole number or text")
    if identifier in (0, ""):
        if start or end:
            name = "sequence_start" if start else "sequence_end"
            raise _bad(name, "is of a sequence; give sequence_id too")
        return None
    text = str(identifier)
    if len(text) > MAX_ID_LENGTH:
        raise _bad("sequence_id", f"has at most {MAX_ID_LENGTH} characters")
    return Sequence(text, bool(start), bool(end))


def region_parameters(region: RegionPart) -> dict[str, int | str]:
    """An output's parameters that say where it lies in shared memory."""
    return {_REGION: region.name, _OFFSET: region.offset, _BYTE_SIZE: region.byte_size}


def _region(kind: str, tensor: str, parameters: Mapping[str, Parameter]) -> RegionPart | None:
    name = parameters.get(_REGION)
    if name is None:
        for other in (_OFFSET, _BYTE_SIZE):
            if other in parameters:
                raise _bad(other, f"is of a region; give {_REGION} too")
        return None
    if not isinstance(name, str):
        raise _bad(_REGION, "takes text")
    size = _integer(parameters, _BYTE_SIZE)
    if size is None:
        raise _bad(_BYTE_SIZE, f"is missing; give it beside {_REGION}")
    field = f"{kind}[{tensor[:200]!r}].{_REGION}"
    return RegionPart(name, _integer(parameters, _OFFSET) or 0, size, field)


def _integer(parameters: Mapping[str, Parameter], name: str) -> int | None:
    """The parameter's value, which has to be a whole number from 0."""
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise _bad(name, "takes a whole number from 0")
    return value


def _boolean(parameters: Mapping[str, Parameter], name: str) -> bool | None:
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise _bad(name, "takes true or false")
    return value


def _bad(name: str, message: str) -> CodecError:
    return CodecError(f"parameters[{name!r}]", message)
