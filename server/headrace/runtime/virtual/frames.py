"""Several devices' own bytes of a network in one piece, with facts about each.

    magic, format version, length of header     fixed size, big-endian
    header                                      JSON: facts and size of each frame
    native                                      the frames' bytes, one after the other
    SHA-256                                     of all before

It travels inside the blob of an exported network, beside the network and under the same MAC.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headrace.runtime.errors import InvalidArgument

F = TypeVar("F")

_NUMBERS: Final = struct.Struct(">II")
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """
    Attributes:
        magic: what the bytes begin with.
        version: raised when the facts become others.
        whose: for the messages, as ``the devices'``.
    """

    magic: bytes
    version: int
    whose: str

    def write(self, frames: Iterable[tuple[Any, bytes]]) -> bytes:
        """
        Args:
            frames: facts, of what JSON has, and bytes.
        """
        kept = tuple(frames)
        facts = [[facts, len(native)] for facts, native in kept]
        header = json.dumps(facts, separators=(",", ":")).encode()
        prefix = self.magic + _NUMBERS.pack(self.version, len(header))
        body = b"".join((prefix, header, *(native for _, native in kept)))
        return body + hashlib.sha256(body).digest()

    def read(self, data: bytes, frame: Callable[[Any, bytes], F]) -> tuple[F, ...]:
        """
        Args:
            frame: makes one of its facts and bytes; ValueError, KeyError or TypeError if it cannot.

        Raises:
            InvalidArgument: these are other bytes, of another format, or damaged.
        """
        start = len(self.magic) + _NUMBERS.size
        if len(data) < start + _DIGEST_BYTES or not data.startswith(self.magic):
            raise self._refusal("they do not start as they should")
        version, header_size = _NUMBERS.unpack_from(data, len(self.magic))
        if version != self.version:
            raise self._refusal(
                f"their format is version {version}, this server reads {self.version}"
            )
        end = len(data) - _DIGEST_BYTES
        if hashlib.sha256(memoryview(data)[:end]).digest() != data[end:]:
            raise self._refusal("they are damaged: their SHA-256 does not match")
        position = start + header_size
        frames = []
        try:
            for facts, size in json.loads(data[start:position]):
                frames.append(frame(facts, data[position : position + int(size)]))
                position += int(size)
        except (ValueError, KeyError, TypeError) as error:
            raise self._refusal("their header cannot be read") from error
        if position != end:
            raise self._refusal("their lengths do not add up")
        return tuple(frames)

    def _refusal(self, why: str) -> InvalidArgument:
        return InvalidArgument(f"{self.whose} bytes cannot be read: {why}", field="blob")
