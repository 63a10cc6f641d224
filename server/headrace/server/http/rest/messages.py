"""Decodes an inference request's body to a call, and encodes a result as a body.

A body is JSON, with tensors in the JSON or as bytes behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Final

import orjson

from headrace.runtime.errors import did_you_mean
from headrace.server.http.rest.documents import leave_out_null, parse_object
from headrace.server.http.rest.tensors import decode_data, encode_data
from headrace.server.services.open_inference.datatypes import (
    BYTES,
    datatype_of,
    decode_raw,
    encode_raw,
)
from headrace.server.services.open_inference.messages import (
    encode_texts,
    of_tensor,
    shared_tensor,
)
from headrace.server.services.open_inference.parameters import (
    NO_PARAMETERS,
    Parameter,
    input_parameters,
    request_parameters,
    wanted_of,
)
from headrace.server.serving.call import (
    InferCall,
    InferResult,
    Input,
    WantedOutput,
    check_tensors,
)
from headrace.server.serving.offload import offload
from headrace.server.serving.serving import tensor
from headrace.wire.codec import Buffer, CodecError

_REQUEST: Final = ("id", "model_name", "model_version", "parameters", "inputs", "outputs")
_INPUT: Final = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT: Final = ("name", "parameters")
_JUST_A_TENSOR: Final = WantedOutput()


def decode(model: str, version: str, text: bytes, binary: memoryview) -> InferCall:
    """
    Args:
        text: the JSON.
        binary: the bytes behind the JSON.

    Raises:
        HTTPException: as `parse_object`.
        CodecError: the request breaks the protocol. The error names the tensor or parameter.
    """
    document = parse_object(text)
    _check_keys(document, _REQUEST, "")
    identifier, version = _text(document, "id"), _version(document, model, version)
    members = _parameters(document)
    parameters = request_parameters(members) if members else NO_PARAMETERS
    inputs = _inputs(_tensors(document, "inputs"), binary)
    names, wanted = _outputs(_tensors(document, "outputs"))
    return InferCall(
        model,
        version,
        identifier,
        inputs,
        names,
        wanted,
        parameters.priority,
        parameters.timeout_seconds,
        parameters.sequence,
        encode_texts=encode_texts,
        binary_outputs=parameters.binary_outputs,
    )


class RestReply:
    """A result as the parts of a body.

    Attributes:
        binary: the tensors behind the JSON.
    """

    def __init__(self, result: InferResult) -> None:
        self._result = result
        self.binary: list[Buffer] = []

    async def text(self) -> AsyncIterator[bytes]:
        """The JSON in pieces. The event loop can run other work between them.

        `binary` is complete when the last piece is.

        Raises:
            FailedPrecondition: JSON cannot hold an output.
            Unimplemented: an output is not a tensor, or the protocol lacks its type.
        """
        call, job = self._result.call, self._result.job
        head: dict[str, Any] = {"model_name": call.network, "model_version": job.version}
        if call.id:
            head["id"] = call.id
        yield orjson.dumps(head)[:-1] + b',"outputs":['
        for index, name in enumerate(job.output_names):
            if index:
                yield b","
            async for piece in self._output(name, call.wanted.get(name, _JUST_A_TENSOR)):
                yield piece
        yield b"]}"

    async def _output(self, name: str, wanted: WantedOutput) -> AsyncIterator[bytes]:
        array = tensor(self._result.outputs[name], name)
        datatype = datatype_of(array.dtype, f"output {name!r}")
        # Clients expect binary_data_size in every output that has parameters.
        said: dict[str, Any] = {
            "name": name,
            "datatype": datatype,
            "shape": list(array.shape),
        }
        if wanted.region is not None:
            yield orjson.dumps(said)
        elif self._result.call.binary_outputs if wanted.binary is None else wanted.binary:
            objects = array.size if datatype == BYTES else 0
            data = await offload(partial(encode_raw, array, datatype), objects)
            self.binary.append(data)
            said["parameters"] = {"binary_data_size": len(data)}
            yield orjson.dumps(said)
        else:
            yield orjson.dumps(said)[:-1] + b',"data":'
            for index, piece in enumerate(encode_data(array, datatype, name)):
                if index:
                    await asyncio.sleep(0)
                yield piece
            yield b"}"


def _inputs(tensors: list[Any], binary: memoryview) -> dict[str, Input]:
    decoded: dict[str, Input] = {}
    used = 0
    for index, each in enumerate(tensors):
        name = _named(each, _INPUT, f"inputs[{index}]")
        try:
            if name in decoded:
                raise CodecError("", "is given twice")
            decoded[name], used = _input(name, each, binary, used)
        except CodecError as error:
            raise of_tensor(error, "inputs", name) from None
    if used < len(binary):
        raise CodecError(
            "", f"the body has {len(binary) - used} bytes that no input's binary_data_size names"
        )
    return decoded


def _input(name: str, members: dict[str, Any], binary: memoryview, used: int) -> tuple[Input, int]:
    """The tensor, and how many of the binary bytes are used so far."""
    datatype, shape = _datatype(members), _shape(members)
    parameters = _parameters(members)
    region, size = input_parameters(name, parameters) if parameters else (None, None)
    if region is None and size is None:
        if "data" not in members:
            raise CodecError(".data", "is missing")
        return decode_data(datatype, shape, members["data"]), used
    if "data" in members:
        kind = "shared_memory_region" if size is None else "binary_data_size"
        raise CodecError(".data", f"must be left out beside {kind}")
    if region is not None:
        return shared_tensor(name, datatype, shape, region), used
    assert size is not None
    if size > len(binary) - used:
        raise CodecError(
            "parameters['binary_data_size']",
            f"is {size}, but {len(binary) - used} bytes are left behind the JSON; its length "
            "belongs into the header Inference-Header-Content-Length",
        )
    return decode_raw(datatype, shape, binary[used : used + size]), used + size


def _outputs(tensors: list[Any]) -> tuple[tuple[str, ...], dict[str, WantedOutput]]:
    names: list[str] = []
    wanted: dict[str, WantedOutput] = {}
    for index, each in enumerate(tensors):
        name = _named(each, _OUTPUT, f"outputs[{index}]")
        names.append(name)
        try:
            if parameters := _parameters(each):
                wanted[name] = wanted_of(name, parameters)
        except CodecError as error:
            raise of_tensor(error, "outputs", name) from None
    return tuple(names), wanted


def _tensors(document: dict[str, Any], field: str) -> list[Any]:
    tensors = document.get(field, [])
    if not isinstance(tensors, list):
        raise CodecError(field, "must be a list of objects")
    check_tensors(field, len(tensors))
    return tensors


def _named(members: Any, keys: tuple[str, ...], place: str) -> str:
    if not isinstance(members, dict):
        raise CodecError(place, "must be an object")
    name = members.get("name")
    if not isinstance(name, str):
        raise CodecError(f"{place}.name", "is missing, or is not text")
    _check_keys(members, keys, f"{place}.")
    return name


def _datatype(members: dict[str, Any]) -> str:
    datatype = members.get("datatype")
    if not isinstance(datatype, str):
        raise CodecError(".datatype", "is missing; pass a text such as FP32")
    return datatype


def _shape(members: dict[str, Any]) -> tuple[int, ...]:
    shape = members.get("shape")
    if not isinstance(shape, list) or any(type(size) is not int for size in shape):
        raise CodecError(".shape", "must be a list of whole numbers")
    return tuple(shape)


def _parameters(members: dict[str, Any]) -> Mapping[str, Parameter]:
    parameters = members.get("parameters", {})
    if not isinstance(parameters, dict):
        raise CodecError("parameters", "must be an object")
    leave_out_null(parameters)
    for name, value in parameters.items():
        if not isinstance(value, bool | int | float | str):
            raise CodecError(f"parameters[{name[:100]!r}]", "must be text, a number or a boolean")
    return parameters


def _version(document: dict[str, Any], model: str, version: str) -> str:
    """The version that the path or the body names. KServe's client repeats the model's name."""
    if _text(document, "model_name") not in ("", model):
        raise CodecError("model_name", f"is not {model!r}, the model in the path; leave it out")
    in_body = _text(document, "model_version")
    if version and in_body not in ("", version):
        raise CodecError("model_version", f"is not {version!r}, the one in the path; leave it out")
    return version or in_body


def _text(members: dict[str, Any], key: str) -> str:
    text = members.get(key, "")
    if not isinstance(text, str):
        raise CodecError(key, "must be text")
    return text


def _check_keys(members: dict[str, Any], known: tuple[str, ...], place: str) -> None:
    """Refuses unknown keys, and leaves out those without a value."""
    for key in members:
        if key not in known:
            raise CodecError(f"{place}{key[:100]}", f"is not known{did_you_mean(key, known)}")
    leave_out_null(members)
