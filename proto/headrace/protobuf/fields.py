"""Fields of serialised messages, read in place and written one by one.

See https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import mmap

Readable: TypeAlias = "bytes | memoryview | mmap.mmap"

VARINT: Final = 0
LENGTH_DELIMITED: Final = 2
GROUPS: Final = (3, 4)  # the beginning and the end of a group
_FIXED_SIZES: Final = {1: 8, 5: 4}
_ONE_BYTE_VARINTS: Final = [bytes([number]) for number in range(128)]


def read_field(data: Readable, position: int, end: int) -> tuple[int, int, int]:
    """Reads the head of the field at `position`.

    Returns:
        The tag, which is the field's number and three bits of its kind, and the offsets of its
        value and of the next field. The latter is beyond `end` if the field is cut short, or begins
        or ends a group.

    Raises:
        IndexError: a number runs over the end of the data, or has more than ten bytes.
    """
    tag, value = data[position], position + 1
    if tag >= 0x80:
        tag, value = read_varint(data, position)
    kind = tag & 7
    if kind == LENGTH_DELIMITED:
        length = data[value]
        if length < 0x80:
            return tag, value + 1, value + 1 + length
        length, value = read_varint(data, value)
        return tag, value, value + length
    if kind == VARINT:
        return tag, value, value + 1 if data[value] < 0x80 else read_varint(data, value)[1]
    size = _FIXED_SIZES.get(kind)
    return tag, value, end + 1 if size is None else value + size


def read_varint(data: Readable, position: int) -> tuple[int, int]:
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


def header(number: int, length: int) -> bytes:
    """The tag and the length of the length-delimited field `number`."""
    return varint(number << 3 | LENGTH_DELIMITED) + varint(length)
