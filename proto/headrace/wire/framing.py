"""The part of protobuf's wire format that reads attachments in place and writes them aligned.

See https://protobuf.dev/programming-guides/encoding/. The scanner does not decide whether a message
is valid. It gives up at anything unusual, and the caller then lets protobuf parse the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import mmap

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

_LENGTH_DELIMITED = 2
_FIXED_SIZES = {1: 8, 5: 4}
_GROUPS = (3, 4)  # the beginning and the end of a group
_ATTACHMENT_TAG = bytes([ATTACHMENTS << 3 | _LENGTH_DELIMITED])
_PADDING_FIELDS = [b"" for _ in range(2)] + [
    bytes([PADDING << 3 | _LENGTH_DELIMITED, size - 2]) + bytes(size - 2)
    for size in range(2, ALIGNMENT + 2)
]
_new: Final = tuple.__new__  # makes a NamedTuple without a call of Python code
_ONE_BYTE_VARINTS = [bytes([number]) for number in range(128)]


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
    wanted = number << 3 | _LENGTH_DELIMITED
    position = rest_start = start
    for _ in range(MAX_FIELDS):
        if position == end:
            if rest_start != end:
                rest.append((rest_start, end))
            return _new(Split, (payloads, rest))
        field_start = position
        try:
            tag, payload_start, position = _field(data, position, end)
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
            tag, payload, position = _field(data, position, end)
        except IndexError:
            return False
        if tag & 7 in _GROUPS:
            position = payload
        if position >= end:
            return False
    return True


def _field(data: bytes, position: int, end: int) -> tuple[int, int, int]:
    """The tag of the field at `position`, and the offsets of its payload and of the next field.

    The offset of the next field is beyond `end` if the field is cut short or is a group.

    Raises:
        IndexError: as `read_varint`.
    """
    tag, payload = data[position], position + 1
    if tag >= 0x80:
        tag, payload = read_varint(data, position)
    kind = tag & 7
    if kind == _LENGTH_DELIMITED:
        length = data[payload]
        if length < 0x80:
            return tag, payload + 1, payload + 1 + length
        length, payload = read_varint(data, payload)
        return tag, payload, payload + length
    if kind == 0:
        return tag, payload, read_varint(data, payload)[1]
    size = _FIXED_SIZES.get(kind)
    return tag, payload, end + 1 if size is None else payload + size


def read_varint(data: bytes | mmap.mmap, position: int) -> tuple[int, int]:
    """The number at `position`, and the offset after it.

    Raises:
        IndexError: the number runs over the end of the data, or has more than ten bytes.
    """
    number = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise IndexError


def join(data: bytes, spans: Sequence[Span]) -> bytes:
    """The bytes of all spans, one after the other."""
    return b"".join([data[start:end] for start, end in spans])


@lru_cache(maxsize=1024)  # most are lengths that come again
def varint(number: int, width: int = 1) -> bytes:
    """The encoding of a number, in at least `width` bytes."""
    if number < 0x80 and width == 1:
        return _ONE_BYTE_VARINTS[number]
    encoded = bytearray()
    while number >= 0x80 or len(encoded) + 1 < width:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


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
        head = _ONE_BYTE_VARINTS[number << 3 | _LENGTH_DELIMITED] + varint(size)
        self._parts += (head, payload)
        self.position += len(head) + size

    def put_attachments(self, attachments: Sequence[Buffer], *, aligned: bool = True) -> None:
        """Appends attachments as field ATTACHMENTS, each at a multiple of ALIGNMENT if wanted."""
        for attachment in attachments:
            header = _ATTACHMENT_TAG + varint(len(attachment))
            padding = -(self.position + len(header)) % ALIGNMENT if aligned else 0
            if padding == 1:  # a field takes two bytes at least
                padding += ALIGNMENT
            self.put(_PADDING_FIELDS[padding] + header)
            self.put(attachment)

    def open_message(self, number: int, size_bound: int) -> tuple[int, int, int]:
        """Begins a nested message of at most `size_bound` bytes; `close_message` takes the mark."""
        width = len(varint(size_bound))
        self.put(_ONE_BYTE_VARINTS[number << 3 | _LENGTH_DELIMITED] + bytes(width))
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
