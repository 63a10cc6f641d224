"""Infer: headrace's own messages ↔ `InferCall` and `InferResult`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from headrace.runtime.execution.job import Sequence
from headrace.runtime.network.values import Value
from headrace.server.logs import CURRENT_REQUEST
from headrace.server.services.convert import layer_profiles
from headrace.server.serving.call import (
    NOTHING_MORE,
    InferCall,
    InferResult,
    RegionPart,
    SharedTensor,
    WantedOutput,
    check_tensors,
)
from headrace.server.serving.layouts import CallLayouts, PartSpans, only
from headrace.server.serving.offload import offload, texts
from headrace.server.serving.serving import Serving
from headrace.server.transport.call import Reply
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import framing
from headrace.wire.codec import Buffer, CodecError, decode_values, encode_values
from headrace.wire.dtypes import BOOL, NUMPY_TYPES
from headrace.wire.message import (
    SMALL_BYTES,
    Attachments,
    parse_infer_request,
    serialize,
    serialize_parts,
)
from headrace.wire.reply import encode_small_reply
from headrace.wire.request import MAX_ID_LENGTH, MAX_PRIORITY, MAX_TIMEOUT_SECONDS
from headrace.wire.shared_memory import attach, check_in_region, describe

INFER: Final = "/headrace.v1.InferenceEngine/Infer"

_ID: Final = 2  # of InferRequest
_INPUTS: Final = 3
_TENSOR: Final = 2  # of Value
_DATA: Final = 3  # of Tensor


class Inference:
    """Belongs to the event loop's thread.

    Attributes:
        layouts: read requests that are like earlier ones.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.layouts = CallLayouts(part_spans)

    async def infer(self, data: bytes, context: Any) -> Reply:
        """Handles the unary call. Takes and returns serialised messages.

        Raises:
            CodecError: the message breaks the protocol.
            Also raises as `Serving.run`.
        """
        serving, call = self._serving, self.layouts.read(data)
        if call is not None:
            serving.name(call.id)
        else:
            message, attachments = parse_infer_request(data)
            serving.name(message.id)
            if len(data) < SMALL_BYTES:
                call = decode(message, attachments)
            else:
                strings = strings_in(message.inputs)
                call = await offload(partial(decode, message, attachments), strings)
            if not message.traceparent:  # which is another each time
                self.layouts.learn(data, call)
        if serving.elsewhere:
            reply = await serving.passed_on(call, INFER, data, context)
            if reply is not None:
                return reply
        result = await serving.run(call, context)
        identifier = call.id or CURRENT_REQUEST.get()
        small = encode_small(identifier, result)
        if small is not None:
            return small
        if all(map(_is_own, result.outputs.values())):
            return serialize_parts(*encode(identifier, result))
        strings = texts(result.outputs.values())
        return await offload(lambda: serialize(*encode(identifier, result)), strings)


def decode(message: pb.InferRequest, attachments: Attachments) -> InferCall:
    """Decodes an InferRequest.

    Raises:
        CodecError: an input breaks the protocol, or a field is out of its bounds.
    """
    priority, timeout = message.priority, message.timeout_seconds
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        problem = f"{priority} is not from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        raise CodecError("priority", problem)
    if not 0 <= timeout <= MAX_TIMEOUT_SECONDS:
        problem = f"has to be a number of seconds from 0 to {MAX_TIMEOUT_SECONDS:g}"
        raise CodecError("timeout_seconds", problem)
    # A slice is a list, which is read in a fraction of the time that a message's own field takes.
    values, outputs, regions = message.inputs[:], message.outputs, message.output_regions
    check_tensors("inputs", len(values))
    if outputs:
        check_tensors("outputs", len(outputs))
    return InferCall(
        message.network,
        message.version,
        message.id,
        decode_values(values, attachments, "inputs", _in_region),
        tuple(outputs[:]) if outputs else (),
        _wanted(regions) if regions else NOTHING_MORE,
        priority,
        timeout,
        _sequence(message.session) if message.HasField("session") else None,
        message.performance_counts,
    )


def part_spans(data: bytes) -> PartSpans | None:
    """Where an InferRequest holds its tensors' bytes and its id."""
    values = framing.split(data, 0, len(data), _INPUTS)
    attached = framing.split(data, 0, len(data), framing.ATTACHMENTS)
    if values is None or attached is None:
        return None
    spans = [only(data, span, _TENSOR) for span in values.payloads]
    tensors = [_bytes_of(data, span, attached.payloads) for span in spans]
    return PartSpans(tensors, only(data, (0, len(data)), _ID))


def _bytes_of(
    data: bytes, tensor: framing.Span | None, attachments: list[framing.Span]
) -> framing.Span | None:
    """Where the bytes of the tensor at this span lie: in the tensor itself or in an attachment."""
    own = only(data, tensor, _DATA)
    if own is not None or tensor is None:
        return own
    number = pb.Tensor.FromString(data[slice(*tensor)]).attachment
    return attachments[number - 1] if 0 < number <= len(attachments) else None


def _sequence(session: Any) -> Sequence:
    if not 1 <= len(session.id) <= MAX_ID_LENGTH:
        raise CodecError("session.id", f"has 1 to {MAX_ID_LENGTH} characters")
    return Sequence(session.id, session.start, session.end)


def _in_region(value: pb.Value) -> SharedTensor:
    """
    Raises:
        CodecError: the tensor also has bytes in the message, or is one of strings.
    """
    tensor, field = value.tensor, f"inputs[{value.name!r}].shared_memory"
    check_in_region(tensor, "")
    return SharedTensor(
        _region(tensor.shared_memory, field),
        None if tensor.dtype == BOOL else NUMPY_TYPES.get(tensor.dtype),
        tuple(tensor.shape),
        partial(_with_bytes, value),
    )


def _with_bytes(value: pb.Value, data: Buffer) -> Value:
    """The value of a tensor in shared memory, whose bytes these are."""
    own, attachments = pb.Value(), list[Buffer]()
    own.CopyFrom(value)  # the call may be remembered
    attach(own.tensor, data, attachments)
    decoded: Value = decode_values([own], attachments)[own.name]
    return decoded


def _wanted(regions: Mapping[str, pb.SharedMemory]) -> dict[str, WantedOutput]:
    return {
        name: WantedOutput(region=_region(place, f"output_regions[{name!r}]"))
        for name, place in regions.items()
    }


def _region(place: pb.SharedMemory, field: str) -> RegionPart:
    return RegionPart(place.region, place.offset, place.bytes, field)


def strings_in(values: Iterable[pb.Value]) -> int:
    """The number of strings in a request's values, which have to be decoded one by one."""
    return sum(
        strings_in(value.sequence.elements)
        if value.HasField("sequence")
        else len(value.tensor.strings)
        for value in values
    )


def encode_small(identifier: str, result: InferResult) -> bytes | None:
    """The serialised reply, or None if it needs a protobuf message."""
    job, wanted = result.job, result.call.wanted
    if job.layers:
        return None
    outputs: Any = result.outputs
    return encode_small_reply(
        identifier,
        job.output_names,
        outputs,
        (job.queue_seconds, job.execution_seconds, job.inference_seconds),
        job.generation,
        job.version,
        job.in_flight,
        {
            name: (output.region.name, output.region.offset)
            for name, output in wanted.items()
            if output.region is not None
        }
        if wanted
        else None,
    )


def encode(identifier: str, result: InferResult) -> tuple[pb.InferReply, list[Any]]:
    job, wanted = result.job, result.call.wanted
    reply = pb.InferReply(id=identifier, generation=job.generation, version=job.version)
    reply.in_flight = job.in_flight
    timings = reply.timings
    timings.queue_seconds = job.queue_seconds
    timings.execution_seconds = job.execution_seconds
    timings.inference_seconds = job.inference_seconds
    if job.layers:
        reply.performance_counts.extend(layer_profiles(job.layers))
    parts: list[Any] = []
    for name in job.output_names:
        value: Any = result.outputs[name]
        region = wanted[name].region if name in wanted else None
        if region is None or value is None:
            encode_values({name: value}, reply.outputs, parts)
        else:
            place = pb.SharedMemory(region=region.name, offset=region.offset)
            describe(value, place, reply.outputs.add(name=name).tensor, region.field)
    return reply, parts


def _is_own(value: Any) -> bool:
    """Whether the memory of an output belongs to it alone, so that it may be sent from there.

    ONNX Runtime gives an array a capsule that owns its memory. A view of a shared segment is not
    sent from where it lies: a slow reader would keep the segment.
    """
    if type(value) is not np.ndarray or value.dtype.kind == "O":
        return False
    return value.flags.owndata or type(value.base).__name__ == "PyCapsule"
