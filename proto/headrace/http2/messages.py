"""gRPC's messages in a stream of data: a byte of flags, four of length, the message."""

from __future__ import annotations

import struct
import zlib
from typing import Final, TypeAlias

import numpy as np

PREFIX_BYTES: Final = 5
_NOTHING: Final = memoryview(b"")
_SMALL_BYTES: Final = 32 << 10
_MAX_BYTES: Final = 2**32 - 1
_GZIP_BITS: Final = 31
_ZLIB_BITS: Final = 15
_unpack: Final = struct.Struct(">BI").unpack_from


class TooLarge(Exception):
    """A message is longer than allowed.

    Attributes:
        size: its bytes. For a compressed message, the most that was unpacked of it.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class BadMessage(Exception):
    """A message cannot be read. The text says why."""


class CompressedMessage:
    """A message that is still compressed.

    A large one takes long to unpack, so whoever reads it decides on which thread.

    Attributes:
        data: the compressed bytes.
    """

    __slots__ = ("_bits", "_most_bytes", "data")

    def __init__(self, data: bytes | memoryview, bits: int, most_bytes: int) -> None:
        self.data = data
        self._bits = bits
        self._most_bytes = most_bytes

    def __len__(self) -> int:
        return len(self.data)

    def unpack(self) -> bytes:
        """The message. At most one byte more than allowed is unpacked, so that a bomb stays small.

        Raises:
            TooLarge: the message is longer than allowed.
            BadMessage: it cannot be unpacked.
        """
        unpacker = zlib.decompressobj(self._bits)
        most = self._most_bytes
        try:
            unpacked = unpacker.decompress(self.data, most + 1 if most else 0)
        except zlib.error as error:
            raise BadMessage(f"a compressed message cannot be unpacked: {error}") from None
        if most and len(unpacked) > most:
            raise TooLarge(len(unpacked))
        if not unpacker.eof:
            raise BadMessage("a compressed message is cut short")
        return unpacked


Message: TypeAlias = "bytes | memoryview | CompressedMessage"


class MessageReader:
    """Puts the messages of one stream together.

    A message that comes in many pieces is copied once, into memory of its own size.

    Attributes:
        missing: how many bytes the message lacks that has begun. 0 if none has.
        whole_bytes: the size of that message.
    """

    __slots__ = (
        "_filled",
        "_flags",
        "_most_bytes",
        "_packed",
        "_prefix",
        "_target",
        "missing",
        "whole_bytes",
    )

    def __init__(self, most_bytes: int, encoding: str = "identity") -> None:
        self._most_bytes = most_bytes or _MAX_BYTES
        self._packed = _BITS.get(encoding)
        self._prefix = b""
        self._flags = 0
        self._target = _NOTHING
        self._filled = 0
        self.missing = 0
        self.whole_bytes = 0

    @property
    def has_begun(self) -> bool:
        """Whether a part of a message waits for the rest."""
        return self.missing > 0 or bool(self._prefix)

    def feed(self, data: memoryview, messages: list[Message]) -> memoryview | None:
        """Takes the next bytes of the stream, and appends the messages that are whole by now.

        Returns:
            The beginning of a message that is not whole. It has to be kept by `begin`, before
            anything else is read.

        Raises:
            TooLarge: a message is longer than allowed. Its bytes are not kept.
            BadMessage: a message cannot be read.
        """
        position, end = 0, len(data)
        if self.missing:
            position = min(self.missing, end)
            self.fill(data[:position])
            self._end(messages)
        most = self._most_bytes
        while position < end:
            if not self._prefix and end - position >= PREFIX_BYTES:  # mostly
                flags, size = _unpack(data, position)
                stop = position + PREFIX_BYTES + size
                if not flags and size <= most and stop <= end:
                    messages.append(bytes(data[position + PREFIX_BYTES : stop]))
                    position = stop
                    continue
            lacking = PREFIX_BYTES - len(self._prefix)
            if end - position < lacking:
                self._prefix += bytes(data[position:])
                return None
            prefix = self._prefix + bytes(data[position : position + lacking])
            self._prefix = b""
            position += lacking
            self._flags = prefix[0]
            size = int.from_bytes(prefix[1:], "big")
            if size > most:
                raise TooLarge(size)
            self._check_flags()
            stop = position + size
            if stop > end:
                self.whole_bytes = size
                self.missing = size - (end - position)
                return data[position:]
            messages.append(self._read(bytes(data[position:stop])))
            position = stop
        return None

    def begin(self, data: memoryview) -> None:
        """Takes the memory for a message, which begins with `data`."""
        # NumPy does not clear memory, which would touch all of it before the message comes.
        self._target = np.empty(self.whole_bytes, np.uint8).data
        self._filled = len(data)
        self._target[: self._filled] = data

    def space(self) -> memoryview:
        """Where the next bytes of the message belong, `missing` of them. Then call `filled`."""
        return self._target[self._filled :]

    def fill(self, data: memoryview) -> None:
        """Takes bytes of the message that has begun, no more than are missing."""
        begin = self._filled
        self._filled = end = begin + len(data)
        self._target[begin:end] = data
        self.missing -= len(data)

    def filled(self, count: int, messages: list[Message]) -> None:
        """Counts bytes that were written into `space`."""
        self._filled += count
        self.missing -= count
        self._end(messages)

    def _end(self, messages: list[Message]) -> None:
        if not self.missing:
            whole, self._target = self._target, _NOTHING
            # A parser of small messages wants bytes; large ones are read in place.
            messages.append(self._read(bytes(whole) if len(whole) < _SMALL_BYTES else whole))

    def _check_flags(self) -> None:
        if self._flags > 1:
            raise BadMessage(f"a message has the flags {self._flags}, and only 0 and 1 are known")
        if self._flags and self._packed is None:
            raise BadMessage("a message is compressed, but the call names no grpc-encoding")

    def _read(self, message: bytes | memoryview) -> Message:
        if self._flags and self._packed is not None:
            return CompressedMessage(message, self._packed, self._most_bytes)
        return message


_BITS: Final = {"gzip": _GZIP_BITS, "deflate": _ZLIB_BITS}
ENCODINGS: Final = ("identity", *_BITS)
"""How messages may be compressed."""


def prefix(size: int) -> bytes:
    """What goes before a message of `size` bytes that is not compressed."""
    return b"\0" + size.to_bytes(4, "big")
