"""Joins several devices' own bytes of a network into one piece, with facts about each.

    magic, format version, length of header     fixed size, big-endian
    header                                      JSON: facts and size of each export
    native                                      the exports' bytes, one after the other
    SHA-256                                     of everything before it

The piece is part of the blob of an exported network, beside the network and under the same MAC.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument

F = TypeVar("F")

_NUMBERS: Final = struct.Struct(">II")
_DIGEST_BYTES: Final = 32


def differences(*facts: tuple[str, str, str]) -> str:
    """The facts that differ between here and the place where bytes were exported; empty if none.

    Args:
        facts: the name of each fact, its value there, and its value here.
    """
    return "; ".join(f"{what} {was!r}, here {now!r}" for what, was, now in facts if was != now)


@dataclass(frozen=True, slots=True)
class MemberExport:
    """A device's own bytes of a network.

    Attributes:
        device: as in the list.
        native: empty if the device exports nothing.
    """

    device: str
    architecture: str
    backend_version: str
    native: bytes = field(default=b"", repr=False)

    def usable_by(self, plugin: Plugin) -> tuple[bytes, str]:
        """The bytes if the device here can use them. Otherwise no bytes, and the reason."""
        why = differences(
            ("device architecture", self.architecture, plugin.architecture),
            ("backend version", self.backend_version, plugin.backend_version),
        )
        return (b"", why) if self.native and why else (self.native, "")


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """
    Attributes:
        magic: the bytes at the beginning.
        version: increased when the kinds of facts change.
        whose: for the messages, for example ``the devices'``.
    """

    magic: bytes
    version: int
    whose: str

    def write(self, exports: Iterable[tuple[Any, bytes]]) -> bytes:
        """
        Args:
            exports: facts, made of JSON's types, and bytes.
        """
        kept = tuple(exports)
        facts = [[facts, len(native)] for facts, native in kept]
        header = json.dumps(facts, separators=(",", ":")).encode()
        prefix = self.magic + _NUMBERS.pack(self.version, len(header))
        body = b"".join((prefix, header, *(native for _, native in kept)))
        return body + hashlib.sha256(body).digest()

    def read(self, data: bytes, make: Callable[[Any, bytes], F]) -> tuple[F, ...]:
        """
        Args:
            make: makes an export from its facts and bytes. It raises ValueError, KeyError or
                TypeError if it cannot.

        Raises:
            InvalidArgument: the bytes are not exports, have another format, or are damaged.
        """
        start = len(self.magic) + _NUMBERS.size
        if len(data) < start + _DIGEST_BYTES or not data.startswith(self.magic):
            raise self._refusal("they do not start with the magic bytes")
        version, header_size = _NUMBERS.unpack_from(data, len(self.magic))
        if version != self.version:
            raise self._refusal(
                f"their format is version {version}, this server reads {self.version}"
            )
        end = len(data) - _DIGEST_BYTES
        if hashlib.sha256(memoryview(data)[:end]).digest() != data[end:]:
            raise self._refusal("they are damaged: their SHA-256 does not match")
        position = start + header_size
        exports = []
        try:
            for facts, size in json.loads(data[start:position]):
                exports.append(make(facts, data[position : position + int(size)]))
                position += int(size)
        except (ValueError, KeyError, TypeError) as error:
            raise self._refusal("their header cannot be read") from error
        if position != end:
            raise self._refusal("their lengths do not add up")
        return tuple(exports)

    def _refusal(self, why: str) -> InvalidArgument:
        return InvalidArgument(f"{self.whose} bytes cannot be read: {why}", field="blob")
