"""Infer messages ↔ bytes, with bulk data in place.

protobuf copies every bytes field when it parses and again when it serialises. Tensors of more than
a few KB therefore travel in the top-level field `attachments`. This module slices the field out of
a large message without a copy, and appends it to a message with a single copy. The bytes are
ordinary protobuf in both directions, so the other side may be any protobuf implementation.
protobuf alone parses small messages.

Bare messages go through `parse_infer_request`, `parse_infer_reply` and `serialize`; those of the
stream through `headrace.wire.stream`. What a client sends to other methods goes through
`parse_request`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import framing
from headrace.wire.bounds import MAX_CONTROL_PARTS, MAX_PARTS, check_parts, malformed
from headrace.wire.codec import Buffer, CodecError

Attachments: TypeAlias = Sequence[Buffer]

SMALL_BYTES: Final = 32 * 1024
"""Messages below this are parsed by protobuf alone."""

_PARTS_BYTES: Final = 128 * 1024
"""From here on, a copy costs more than a message in parts."""

_UNREADABLE: Final = (DecodeError, UnicodeDecodeError)
"""The exceptions that protobuf raises; the second one comes from its implementation in Python."""
_Request = pb.InferRequest
_Reply = pb.InferReply


def parse_infer_request(data: bytes) -> tuple[pb.InferRequest, Attachments]:
    """The request, and its attachments as views of `data`.

    Read the attachments from the second result, not from the request's own field `attachments`.

    Raises:
        CodecError: `data` is no InferRequest, or has very many parts.
    """
    if len(data) < SMALL_BYTES:
        try:
            message = _Request.FromString(data)
        except _UNREADABLE:
            raise malformed(_Request.DESCRIPTOR) from None
        return message, message.attachments
    check_parts(_Request, data, MAX_PARTS)
    return parse_span(_Request, data, 0, len(data))


def parse_infer_reply(data: bytes) -> tuple[pb.InferReply, Attachments]:
    """The reply, and its attachments as views of `data`; see `parse_infer_request`."""
    if len(data) < SMALL_BYTES:
        try:
            message = _Reply.FromString(data)
        except _UNREADABLE:
            raise malformed(_Reply.DESCRIPTOR) from None
        return message, message.attachments
    return parse_span(_Reply, data, 0, len(data))


def serialize(message: pb.InferRequest | pb.InferReply, attachments: Attachments = ()) -> bytes:
    """The message followed by the attachments; an attachment is any buffer of bytes."""
    head: bytes = message.SerializeToString()
    if not attachments:
        return head
    writer = framing.MessageWriter()
    writer.put(head)
    writer.put_attachments(attachments, aligned=is_in_place(head, attachments))
    return writer.to_bytes()


def serialize_request(message: pb.InferRequest, attachments: Attachments) -> bytes | list[Buffer]:
    """As `serialize`. A large message is a list of its parts, without a copy of the attachments,
    which must not change until it has been sent."""
    if sum(map(len, attachments)) < _PARTS_BYTES:
        return serialize(message, attachments)
    return serialize_parts(message, attachments)


def is_in_place(head: bytes, attachments: Attachments) -> bool:
    """Whether the receiver takes the attachments where they lie, and so wants them aligned.

    Small messages have no padding: whatever lies before one in a stream's message, two that are
    alike have the same bytes, by which the server knows them again.
    """
    return len(head) + sum(map(len, attachments)) >= SMALL_BYTES


def serialize_parts(
    message: pb.InferRequest | pb.InferReply, attachments: Attachments
) -> list[Buffer]:
    """As `serialize`, without a copy of the attachments, which must not change."""
    writer = framing.MessageWriter()
    writer.put(message.SerializeToString())
    writer.put_attachments(attachments)
    return writer.to_parts()


def parse_span(message_type: Any, data: bytes, start: int, end: int) -> tuple[Any, Attachments]:
    """Like `parse_infer_request`, for the InferRequest or InferReply at ``data[start:end]``."""
    if end - start >= SMALL_BYTES:
        parts = framing.split(data, start, end, framing.ATTACHMENTS)
        if parts is not None and parts.payloads:
            message = parse_plain(message_type, framing.join(data, parts.rest))
            view = memoryview(data)
            return message, [view[begin:stop] for begin, stop in parts.payloads]
    whole = data if start == 0 and end == len(data) else data[start:end]
    if message_type is _Request and len(whole) >= SMALL_BYTES and framing.is_long(whole):
        # Check before protobuf allocates thirty times the message's size.
        raise CodecError("", f"a request of more than {framing.MAX_FIELDS} parts; send several")
    message = parse_plain(message_type, whole)
    return message, message.attachments


def parse_request(message_type: Any, data: bytes) -> Any:
    """A client's message to a method other than Infer and InferStream.

    Raises:
        CodecError: protobuf refuses `data`, or it has very many parts.
    """
    check_parts(message_type, data, MAX_CONTROL_PARTS)
    return parse_plain(message_type, data)


def parse_plain(message_type: Any, data: bytes) -> Any:
    """protobuf's own parse.

    Raises:
        CodecError: protobuf refuses `data`.
    """
    try:
        return message_type.FromString(data)
    except _UNREADABLE:
        raise malformed(message_type.DESCRIPTOR) from None
