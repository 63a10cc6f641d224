"""Header compression (RFC 7541): decoding. What this package encodes needs no table."""

from __future__ import annotations

from typing import Final, TypeAlias

import hpack
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

Field: TypeAlias = tuple[bytes, bytes]

FIELD_BYTES: Final = 32
"""What a field counts beside its name and value (4.1)."""

_STATIC: Final[tuple[Field, ...]] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_FIRST: Final = len(_STATIC)  # the index of the newest entry of the dynamic table
_NEWEST: Final = _FIRST - 1
TABLE_BYTES: Final = 4096
_SIZE_UPDATES: Final = 2  # how many a block may begin with (4.2)
_INTEGER_BYTES: Final = 5


class BadBlock(Exception):
    """A header block cannot be decoded, so that no later one can."""


class TooManyFields(Exception):
    """A list of fields is larger than what is decoded."""


class Decoder:
    """Decodes a connection's header blocks, in their order.

    The work for a block is bounded by its size and by that of the list.

    Args:
        most_bytes: the largest list of fields.

    Attributes:
        changes: how often the table has changed.
    """

    __slots__ = ("_entries", "_most_bytes", "_size", "_table_bytes", "changes")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: list[Field] = []  # the newest one last
        self._size = 0
        self._table_bytes = TABLE_BYTES
        self.changes = 0

    def decode(self, block: bytes) -> tuple[list[Field], int]:
        """The fields of a block, and the size of their list.

        Raises:
            BadBlock: it is none.
            TooManyFields: the list is too large.
        """
        try:
            return self._decode(block)
        except (IndexError, hpack.HPACKError):
            raise BadBlock from None

    def _decode(self, block: bytes) -> tuple[list[Field], int]:
        position = self._resize(block)
        fields: list[Field] = []
        size, most, end = 0, self._most_bytes, len(block)
        entries = self._entries
        while position < end:
            first = block[position]
            position += 1
            if first >= 0x80:
                index = first & 0x7F
                if index == 0x7F:
                    index, position = _integer(block, position, index)
                field = _STATIC[index] if index < _FIRST else entries[_NEWEST - index]
                if not index:
                    raise BadBlock
            else:
                # A field for the table, a change of the table's size, or a field that is not kept.
                mask = 0x3F if first & 0x40 else 0x0F
                if first & 0x60 == 0x20:
                    raise BadBlock
                index = first & mask
                if index == mask:
                    index, position = _integer(block, position, index)
                if index:
                    name = (_STATIC[index] if index < _FIRST else entries[_NEWEST - index])[0]
                else:
                    name, position = _string(block, position)
                value, position = _string(block, position)
                field = (name, value)
                if first & 0x40:
                    self._keep(field)
            size += len(field[0]) + len(field[1]) + FIELD_BYTES
            if size > most:
                raise TooManyFields
            fields.append(field)
        return fields, size

    def _resize(self, block: bytes) -> int:
        """Changes the table's size as the block says, and returns where its fields begin."""
        position = count = 0
        while position < len(block) and block[position] & 0xE0 == 0x20:
            size = block[position] & 0x1F
            position += 1
            if size == 0x1F:
                size, position = _integer(block, position, size)
            count += 1
            if size > TABLE_BYTES or count > _SIZE_UPDATES:
                raise BadBlock
            self._table_bytes = size
            self.changes += 1
            self._evict()
        return position

    def _keep(self, field: Field) -> None:
        self.changes += 1
        self._entries.append(field)
        self._size += len(field[0]) + len(field[1]) + FIELD_BYTES
        self._evict()

    def _evict(self) -> None:
        while self._size > self._table_bytes:
            name, value = self._entries.pop(0)
            self._size -= len(name) + len(value) + FIELD_BYTES


def _integer(block: bytes, position: int, start: int) -> tuple[int, int]:
    """An integer whose prefix was full (5.1), and the position after it."""
    value = start
    for shift in range(0, 7 * _INTEGER_BYTES, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise BadBlock


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    """A string (5.2), and the position after it."""
    first = block[position]
    position += 1
    length = first & 0x7F
    if length == 0x7F:
        length, position = _integer(block, position, length)
    end = position + length
    if end > len(block):
        raise BadBlock
    text = block[position:end]
    return (decode_huffman(text) if first & 0x80 else text), end
