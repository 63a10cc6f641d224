"""Decodes a ModelInferRequest to a call, and encodes a result as a ModelInferResponse."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from headrace.oip import open_inference_pb2 as oip
from headrace.protobuf.fields import header
from headrace.server.services.open_inference.datatypes import (
    BOOL,
    BYTES,
    NUMPY_TYPES,
    datatype_of,
    decode_bytes,
    decode_numbers,
    decode_raw,
    encode_raw,
)
from headrace.server.services.open_inference.parameters import (
    NO_PARAMETERS,
    input_parameters,
    region_parameters,
    request_parameters,
    wanted_of,
)
from headrace.server.serving.call import (
    NOTHING_MORE,
    InferCall,
    InferResult,
    Input,
    RegionPart,
    SharedTensor,
    WantedOutput,
    check_tensors,
)
from headrace.server.serving.layouts import PartSpans, only
from headrace.server.serving.offload import on_thread
from headrace.server.serving.serving import tensor
from headrace.wire import framing
from headrace.wire.bounds import MAX_PARTS, check_parts
from headrace.wire.codec import Array, Buffer, CodecError
from headrace.wire.message import SMALL_BYTES, parse_plain

MODEL_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"

_ID: Final = 3  # number of id in ModelInferRequest
_RAW: Final = 7  # number of raw_input_contents in ModelInferRequest
_RAW_OUTPUT: Final = 6  # raw_output_contents in ModelInferResponse
_INFER_RESPONSE: Final = 2  # infer_response in ModelStreamInferResponse
NO_FACTS: Final[Mapping[str, bool]] = MappingProxyType({})
_PARAMETER: Final = {bool: "bool_param", int: "int64_param", str: "string_param"}

_CONTENTS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""The field of InferTensorContents for each datatype. FP16 and BF16 have no field."""


def parse(data: bytes) -> tuple[Any, Sequence[Buffer]]:
    """The ModelInferRequest and its raw contents. They are views of `data` if it is large.

    Raises:
        CodecError: `data` is not a ModelInferRequest, or has too many parts.
    """
    kind = oip.ModelInferRequest
    if len(data) < SMALL_BYTES:
        message = parse_plain(kind, data)
        return message, message.raw_input_contents[:]
    check_parts(kind, data, MAX_PARTS)
    parts = framing.split(data, 0, len(data), _RAW)
    if parts is not None and parts.payloads:
        view = memoryview(data)
        message = parse_plain(kind, framing.join(data, parts.rest))
        return message, [view[start:end] for start, end in parts.payloads]
    if framing.is_long(data):  # protobuf would need thirty times the message's size
        raise CodecError("", f"a request of more than {framing.MAX_FIELDS} parts; send several")
    message = parse_plain(kind, data)
    return message, message.raw_input_contents[:]


async def parse_offloaded(data: bytes) -> tuple[Any, Awaitable[InferCall]]:
    """The message and its call, which another thread reads. Raises as `parse`; the awaitable raises
    as `decode`."""
    message, raw = await on_thread(parse, data)
    return message, on_thread(decode, message, raw)


def is_heavy(data: bytes) -> bool:
    """Whether a request takes long to read: it is large, not counting raw numbers, which are read
    in place."""
    if len(data) < SMALL_BYTES:
        return False
    parts = framing.split(data, 0, len(data), _RAW)
    if parts is None or sum(end - start for start, end in parts.rest) >= SMALL_BYTES:
        return True
    return BYTES.encode() in framing.join(data, parts.rest)


def part_spans(data: bytes) -> PartSpans | None:
    """Where a ModelInferRequest holds its tensors' bytes and its id."""
    raw = framing.split(data, 0, len(data), _RAW)
    return None if raw is None else PartSpans(raw.payloads, only(data, (0, len(data)), _ID))


def decode(message: Any, raw: Sequence[Buffer]) -> InferCall:
    """
    Raises:
        CodecError: the message breaks the protocol. The error names the tensor or parameter.
    """
    given = message.parameters
    parameters = request_parameters(plain(given)) if given else NO_PARAMETERS
    names, wanted = _outputs(message.outputs) if message.outputs else ((), NOTHING_MORE)
    return InferCall(
        message.model_name,
        message.model_version,
        message.id,
        _inputs(message.inputs[:], raw),
        names,
        wanted,
        parameters.priority,
        parameters.timeout_seconds,
        parameters.sequence,
        encode_texts=encode_texts,
        binary_outputs=parameters.binary_outputs,
    )


def encode(result: InferResult, parameters: Mapping[str, bool] = NO_FACTS) -> bytes:
    """The serialised ModelInferResponse, with these parameters.

    It is written as bytes directly. protobuf would copy the tensors twice more, and would take as
    long for a small response as all other steps together.

    Raises:
        Unimplemented: an output is not a tensor, or the protocol lacks its type.
    """
    call, job = result.call, result.job
    head: list[Buffer] = [_named(call.network, job.version)]
    if call.id:
        head.append(_text(3, call.id))
    if parameters:
        message = oip.ModelInferResponse()
        for name, value in parameters.items():
            message.parameters[name].bool_param = value
        head.append(message.SerializeToString())
    contents: list[Buffer] = []
    wanted, outputs = call.wanted, result.outputs
    for name in job.output_names:
        given = outputs[name]
        array = given if type(given) is np.ndarray else tensor(given, name)
        region = wanted[name].region if name in wanted else None
        described, datatype = _described(name, array.dtype, array.shape, region)
        head.append(described)
        # An output in shared memory has an empty entry: perf_analyzer finds outputs by number.
        raw = encode_raw(array, datatype) if region is None else b""
        contents += (_raw_head(len(raw)), raw)
    return b"".join((*head, *contents))


def encode_texts(array: Array) -> Buffer:
    """A tensor of BYTES as it lies in shared memory."""
    return encode_raw(array, BYTES)


def on_stream(response: bytes) -> bytes:
    """A serialised ModelInferResponse as a serialised ModelStreamInferResponse."""
    return header(_INFER_RESPONSE, len(response)) + response


@lru_cache(maxsize=1024)
def _described(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], region: RegionPart | None
) -> tuple[bytes, str]:
    """An element of `outputs`, and its datatype. Raises as `datatype_of`."""
    datatype = datatype_of(dtype, f"output {name!r}")
    message = oip.ModelInferResponse()
    described = message.outputs.add(name=name, datatype=datatype, shape=shape)
    if region is not None:
        put_parameters(described.parameters, region_parameters(region))
    data: bytes = message.SerializeToString()
    return data, datatype


def put_parameters(fields: Any, parameters: Mapping[str, bool | int | str]) -> None:
    """Adds parameters to the `parameters` of a message."""
    for name, value in parameters.items():
        setattr(fields[name], _PARAMETER[type(value)], value)


@lru_cache(maxsize=1024)
def _named(model: str, version: str) -> bytes:
    return _text(1, model) + _text(2, version)


@lru_cache(maxsize=1024)
def _raw_head(size: int) -> bytes:
    """What is before the bytes of an element of `raw_output_contents`."""
    return header(_RAW_OUTPUT, size)


def _text(number: int, text: str) -> bytes:
    data = text.encode()
    return header(number, len(data)) + data


def _inputs(tensors: Sequence[Any], raw: Sequence[Buffer]) -> dict[str, Input]:
    check_tensors("inputs", len(tensors))
    decoded: dict[str, Input] = {}
    used = 0
    for each in tensors:
        name = each.name
        try:
            if name in decoded:
                raise CodecError("", "is given twice")
            shape = tuple(each.shape[:])
            if each.parameters and (region := input_parameters(name, plain(each.parameters))[0]):
                if _has_contents(each):
                    raise CodecError(".contents", "must be empty beside shared_memory_region")
                decoded[name] = shared_tensor(name, each.datatype, shape, region)
            elif raw:
                if _has_contents(each):
                    raise CodecError(".contents", "must be empty where raw_input_contents is used")
                if used == len(raw):
                    raise CodecError("", f"has no entry in raw_input_contents, which has {used}")
                used += 1
                decoded[name] = decode_raw(each.datatype, shape, raw[used - 1])
            else:
                decoded[name] = _typed(each, shape)
        except CodecError as error:
            raise of_tensor(error, "inputs", name) from None
    if used < len(raw):
        raise CodecError(
            "raw_input_contents", f"has {len(raw)} entries for {used} inputs; give one for each"
        )
    return decoded


def _has_contents(each: Any) -> bool:
    """Whether a tensor has typed contents. MLServer's client sends an empty message beside raw
    contents."""
    return bool(each.HasField("contents") and each.contents.ListFields())


def _typed(each: Any, shape: tuple[int, ...]) -> Array:
    datatype, contents = each.datatype, each.contents
    field = _CONTENTS.get(datatype)
    if field is None:
        if datatype in NUMPY_TYPES:
            raise CodecError(".contents", f"cannot hold {datatype}; send raw_input_contents")
        return decode_numbers(datatype, shape, ())  # raises an error that says what is wrong
    for other, _ in contents.ListFields():
        if other.name != field:
            raise CodecError(f".contents.{other.name}", f"is not for {datatype}; fill {field}")
    elements = getattr(contents, field)
    try:
        if datatype == BYTES:
            return decode_bytes(shape, elements)
        return decode_numbers(datatype, shape, elements)
    except CodecError as error:
        raise error.under("" if error.field else f".contents.{field}") from None


def _outputs(tensors: Any) -> tuple[tuple[str, ...], Mapping[str, WantedOutput]]:
    check_tensors("outputs", len(tensors))
    wanted: dict[str, WantedOutput] = {}
    tensors = tensors[:]
    for each in tensors:
        if each.parameters:
            try:
                wanted[each.name] = wanted_of(each.name, plain(each.parameters))
            except CodecError as error:
                raise of_tensor(error, "outputs", each.name) from None
    return tuple([each.name for each in tensors]), wanted


def shared_tensor(
    name: str, datatype: str, shape: tuple[int, ...], region: RegionPart
) -> SharedTensor:
    """An input in shared memory."""

    def decode(data: Buffer) -> Array:
        try:
            return decode_raw(datatype, shape, data)
        except CodecError as error:
            raise of_tensor(error, "inputs", name) from None

    dtype = None if datatype in (BYTES, BOOL) else NUMPY_TYPES.get(datatype)
    return SharedTensor(region, dtype, shape, decode)


def of_tensor(error: CodecError, field: str, name: str) -> CodecError:
    """The error with the path of a tensor before its field."""
    dot = "" if error.field[:1] in ("", ".") else "."
    return error.under(f"{field}[{name[:200]!r}]{dot}")


def plain(parameters: Any, field: str = "parameters") -> dict[str, Any]:
    """The values of a map of parameters, for any of the protocol's parameter messages.

    Raises:
        CodecError: a parameter has no value.
    """
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise CodecError(f"{field}[{name[:100]!r}]", "has no value")
        values[name] = getattr(parameter, kind)
    return values
