"""Messages of InferStream ↔ bytes: several requests or results in each, bulk data in place.

It does what `headrace.wire.message` does for single requests, one level deeper.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from google.rpc import status_pb2

from headrace.protobuf.fields import varint
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import framing
from headrace.wire.bounds import MAX_PARTS, check_parts
from headrace.wire.codec import CodecError
from headrace.wire.message import SMALL_BYTES, Attachments, is_in_place, parse_plain, parse_span

_REQUESTS = 1
_CANCEL = 2
_RESULTS = 1
_LIMITS = 2
_MESSAGES_READ = b"\x18"  # the tag of field 3
_REPLY = 2
_ERROR = 3


class StreamLimits(NamedTuple):
    """What one stream of the server takes.

    Attributes:
        in_flight: the most requests without a result.
        message_bytes: the largest message; 0 for no limit.
    """

    in_flight: int
    message_bytes: int = 0


class StreamRequest(NamedTuple):
    """One of a message's requests."""

    message: pb.InferRequest
    attachments: Attachments = ()


class StreamResult(NamedTuple):
    """The result of the request `id`: a reply or an error."""

    id: str
    reply: pb.InferReply | None = None
    attachments: Attachments = ()
    error: status_pb2.Status | None = None


class EncodedResult(NamedTuple):
    """A StreamResult whose reply is already serialised, except for its attachments."""

    id: str
    reply: bytes | None = None
    attachments: Attachments = ()
    error: status_pb2.Status | None = None


class StreamMessage(NamedTuple):
    """What a client's message holds.

    Attributes:
        cancel: the ids to cancel.
    """

    requests: list[StreamRequest]
    cancel: list[str]
    asks_limits: bool = False


class StreamReply(NamedTuple):
    """What a server's message holds.

    Attributes:
        limits: None unless the client has asked for them.
        messages_read: how many messages of the stream the server has read; 0 if it does not say.
    """

    results: list[StreamResult]
    limits: StreamLimits | None = None
    messages_read: int = 0


def parse_infer_stream_request(data: bytes) -> StreamMessage:
    """Reads a message of a client.

    Raises:
        CodecError: `data` is no InferStreamRequest, or it holds very many requests, or its requests
            have very many parts. An empty request takes two bytes in the message and most of a
            kilobyte in memory.
    """
    if len(data) >= SMALL_BYTES:
        check_parts(pb.InferStreamRequest, data, MAX_PARTS)
        parts = framing.split(data, 0, len(data), _REQUESTS)
        if parts is not None:
            rest = parse_plain(pb.InferStreamRequest, framing.join(data, parts.rest))
            requests = [
                StreamRequest(*parse_span(pb.InferRequest, data, start, end))
                for start, end in parts.payloads
            ]
            return _bounded(StreamMessage(requests, list(rest.cancel), rest.ask_limits))
        if framing.is_long(data):  # before protobuf allocates fifty times the message's size
            raise _too_many()
    message = parse_plain(pb.InferStreamRequest, data)
    requests = [StreamRequest(request, request.attachments) for request in message.requests]
    return _bounded(StreamMessage(requests, list(message.cancel), message.ask_limits))


def _bounded(message: StreamMessage) -> StreamMessage:
    """
    Raises:
        CodecError: the message holds very many requests, ids to cancel included.
    """
    if len(message.requests) + len(message.cancel) > framing.MAX_FIELDS:
        raise _too_many()
    return message


def _too_many() -> CodecError:
    return CodecError(
        "requests",
        f"are more than {framing.MAX_FIELDS} in one message, ids to cancel included; send several "
        "messages",
    )


def parse_infer_stream_reply(data: bytes) -> StreamReply:
    """Reads a message of a server. A result with neither reply nor error has both None.

    Raises:
        CodecError: `data` is no InferStreamReply.
    """
    if len(data) >= SMALL_BYTES:
        parts = framing.split(data, 0, len(data), _RESULTS)
        if parts is not None:
            rest = parse_plain(pb.InferStreamReply, framing.join(data, parts.rest))
            results = [_parse_result(data, start, end) for start, end in parts.payloads]
            return StreamReply(results, _limits(rest), rest.messages_read)
    message = parse_plain(pb.InferStreamReply, data)
    results = list(map(_plain_result, message.results))
    return StreamReply(results, _limits(message), message.messages_read)


def _limits(message: pb.InferStreamReply) -> StreamLimits | None:
    if not message.HasField("limits"):
        return None
    return StreamLimits(message.limits.in_flight, message.limits.message_bytes)


def _parse_result(data: bytes, start: int, end: int) -> StreamResult:
    if end - start >= SMALL_BYTES:
        parts = framing.split(data, start, end, _REPLY)
        # protobuf merges a reply that comes in several pieces, or beside an error. Let it do so.
        if parts is not None and len(parts.payloads) == 1:
            head = parse_plain(pb.InferStreamResult, framing.join(data, parts.rest))
            if not head.HasField("error"):
                reply, attachments = parse_span(pb.InferReply, data, *parts.payloads[0])
                return StreamResult(head.id, reply, attachments)
    return _plain_result(parse_plain(pb.InferStreamResult, data[start:end]))


def _plain_result(result: pb.InferStreamResult) -> StreamResult:
    if result.HasField("reply"):
        return StreamResult(result.id, result.reply, result.reply.attachments)
    return StreamResult(result.id, error=result.error if result.HasField("error") else None)


def serialize_infer_stream_request(
    requests: Iterable[StreamRequest], cancel: Iterable[str] = ()
) -> bytes:
    """One message of several requests, and ids to cancel."""
    writer = framing.MessageWriter()
    for message, attachments in requests:
        _put(writer, _REQUESTS, message.SerializeToString(), attachments)
    for identifier in cancel:
        writer.put_field(_CANCEL, identifier.encode("utf-8"))
    return writer.to_bytes()


def serialize_infer_stream_reply(
    results: Iterable[StreamResult | EncodedResult],
    limits: StreamLimits | None = None,
    messages_read: int = 0,
) -> bytes:
    """One message of several results, the stream's limits, and how many messages were read."""
    writer = framing.MessageWriter()
    if messages_read:
        writer.put(_MESSAGES_READ + varint(messages_read))
    if limits is not None:
        taken = pb.StreamLimits(in_flight=limits.in_flight, message_bytes=limits.message_bytes)
        writer.put_field(_LIMITS, taken.SerializeToString())
    for identifier, reply, attachments, error in results:
        name = identifier.encode()
        head = b"".join((b"\x0a", varint(len(name)), name))
        if reply is None:
            body = b"" if error is None else error.SerializeToString()
            if error is not None:
                head += bytes([_ERROR << 3 | 2]) + varint(len(body))
            writer.put_field(_RESULTS, head + body)
            continue
        body = reply if isinstance(reply, bytes) else reply.SerializeToString()
        if attachments:
            bound = framing.size_bound(body, attachments)
            mark = writer.open_message(_RESULTS, bound + len(head) + 8)
            writer.put(head)
            _put(writer, _REPLY, body, attachments)
            writer.close_message(mark)
        else:
            writer.put_field(_RESULTS, b"".join((head, b"\x12", varint(len(body)), body)))
    return writer.to_bytes()


def _put(writer: framing.MessageWriter, number: int, head: bytes, attachments: Attachments) -> None:
    if not attachments:
        writer.put_field(number, head)
        return
    mark = writer.open_message(number, framing.size_bound(head, attachments))
    writer.put(head)
    writer.put_attachments(attachments, aligned=is_in_place(head, attachments))
    writer.close_message(mark)
