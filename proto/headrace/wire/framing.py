"""The part of protobuf's wire format that reads attachments in place and writes them aligned.

See https://protobuf.dev/programming-guides/encoding/. The scanner does not decide whether a message
is valid. It gives up at anything unusual, and the caller then lets protobuf parse the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from headrace.protobuf.fields import GROUPS, LENGTH_DELIMITED, header, read_field, varint

Buffer: TypeAlias = "bytes | memoryview"
Span: TypeAlias = "tuple[int, int]"

ATTACHMENTS: Final = 15
"""Number of the field `attachments` in InferRequest and InferReply."""
PADDING: Final = 14
"""A field that is reserved in both messages. It pads, so that the next field is aligned. Receivers
skip it."""
ALIGNMENT: Final = 16
"""The alignment that an allocator guarantees for the beginning of a message's bytes."""

MAX_FIELDS: Final = 4096
"""protobuf's C code parses a message of more fields faster than Python splits it."""

_PADDING_FIELDS = [b"" for _ in range(2)] + [
    bytes([PADDING << 3 | LENGTH_DELIMITED, size - 2]) + bytes(size - 2)
    for size in range(2, ALIGNMENT + 2)
]
_new: Final = tuple.__new__  # makes a NamedTuple without a call of Python code


class Split(NamedTuple):
    """Where the parts of a message lie in its bytes: start and end offsets."""

    payloads: list[Span]  # of the wanted field, tag and length excluded, in order
    rest: list[Span]  # all other fields, tags included, in order


def split(data: bytes, start: int, end: int, number: int) -> Split | None:
    """Splits the message ``data[start:end]`` at its length-delimited top-level field `number`.

    Returns:
        None if the message is malformed, holds groups, or has very many fields.
    """
    payloads: list[Span] = []
    rest: list[Span] = []
    wanted = number << 3 | LENGTH_DELIMITED
    position = rest_start = start
    for _ in range(MAX_FIELDS):
        if position == end:
            if rest_start != end:
                rest.append((rest_start, end))
            return _new(Split, (payloads, rest))
        field_start = position
        try:
            tag, payload_start, position = read_field(data, position, end)
        except IndexError:
            return None
        if position > end:
            return None
        if tag == wanted:
            payloads.append((payload_start, position))
            if rest_start != field_start:
                rest.append((rest_start, field_start))
            rest_start = position
    return None


def is_long(data: bytes) -> bool:
    """Whether the message begins with more fields than `split` takes, counting those in groups."""
    position, end = 0, len(data)
    for _ in range(MAX_FIELDS):
        try:
            tag, payload, position = read_field(data, position, end)
        except IndexError:
            return False
        if tag & 7 in GROUPS:
            position = payload
        if position >= end:
            return False
    return True


def join(data: bytes, spans: Sequence[Span]) -> bytes:
    """The bytes of all spans, one after the other."""
    return b"".join([data[start:end] for start, end in spans])


class MessageWriter:
    """Gathers a message's parts, to be joined in one copy. Not thread-safe."""

    __slots__ = ("_parts", "position")

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self.position = 0

    def put(self, part: Buffer) -> None:
        """Appends encoded fields."""
        self._parts.append(part)
        self.position += len(part)

    def put_field(self, number: int, payload: bytes) -> None:
        """Appends one length-delimited field with a number below 16."""
        size = len(payload)
        head = header(number, size)
        self._parts += (head, payload)
        self.position += len(head) + size

    def put_attachments(self, attachments: Sequence[Buffer], *, aligned: bool = True) -> None:
        """Appends attachments as field ATTACHMENTS, each at a multiple of ALIGNMENT if wanted."""
        for attachment in attachments:
            head = header(ATTACHMENTS, len(attachment))
            padding = -(self.position + len(head)) % ALIGNMENT if aligned else 0
            if padding == 1:  # a field takes two bytes at least
                padding += ALIGNMENT
            self.put(_PADDING_FIELDS[padding] + head)
            self.put(attachment)

    def open_message(self, number: int, size_bound: int) -> tuple[int, int, int]:
        """Begins a nested message of at most `size_bound` bytes; `close_message` takes the mark."""
        width = len(varint(size_bound))
        self.put(varint(number << 3 | LENGTH_DELIMITED) + bytes(width))
        return len(self._parts) - 1, self.position, width

    def close_message(self, mark: tuple[int, int, int]) -> None:
        """Ends the nested message and writes its length."""
        slot, start, width = mark
        tag = self._parts[slot][:1]
        self._parts[slot] = bytes(tag) + varint(self.position - start, width)

    def to_parts(self) -> list[Buffer]:
        """The parts as they were put, the large ones in place."""
        return self._parts

    def to_bytes(self) -> bytes:
        return b"".join(self._parts)


def size_bound(head: bytes, attachments: Sequence[Buffer]) -> int:
    """An upper bound of the size of a message of `head` and aligned attachments."""
    overhead = 8 + 2 * ALIGNMENT
    return len(head) + sum(len(attachment) + overhead for attachment in attachments)
