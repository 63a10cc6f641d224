"""Requests of REST that another server computes: servers ask each other in gRPC, by ModelInfer."""

from __future__ import annotations

from typing import Any

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.execution.job import Job, nobody_waits
from headrace.server.services.open_inference.datatypes import datatype_of, decode_raw, encode_raw
from headrace.server.services.open_inference.messages import put_parameters
from headrace.server.services.open_inference.parameters import call_parameters
from headrace.server.serving.call import InferCall, InferResult
from headrace.server.serving.serving import tensor
from headrace.server.shared_memory.regions import UnknownRegion


def request_of(call: InferCall) -> bytes:
    """A call as a serialised ModelInferRequest.

    Raises:
        UnknownRegion: a tensor lies in shared memory, which other servers do not have.
    """
    message = oip.ModelInferRequest(model_name=call.network, model_version=call.version, id=call.id)
    for region in call.regions():
        raise UnknownRegion(
            f"network {call.network!r} is on another server, which does not have shared memory "
            f"region {region.name!r}; send the tensors in the message",
            field=region.field,
        )
    put_parameters(message.parameters, call_parameters(call))
    for name, value in call.inputs.items():
        array: Any = value  # not in a region
        datatype = datatype_of(tensor(array, name).dtype, f"input {name!r}")
        message.inputs.add(name=name, datatype=datatype, shape=array.shape)
        message.raw_input_contents.append(bytes(encode_raw(array, datatype)))
    for name in call.outputs:
        output = message.outputs.add(name=name)
        classes = call.wanted[name].classification if name in call.wanted else 0
        if classes:
            put_parameters(output.parameters, {"classification": classes})
    data: bytes = message.SerializeToString()
    return data


def result_of(call: InferCall, reply: bytes) -> InferResult:
    """The result of a call in a serialised ModelInferResponse of another server of ours."""
    message = oip.ModelInferResponse.FromString(reply)
    described = message.outputs
    job = Job({}, nobody_waits, output_names=tuple([each.name for each in described]))
    job.version = message.model_version
    for each, raw in zip(described, message.raw_output_contents, strict=True):
        job.outputs[each.name] = decode_raw(each.datatype, tuple(each.shape), raw)
    return InferResult(call, job, job.outputs)
