"""What an exported network keeps of the devices that served it: each one's own bytes.

    magic, format version, length of header     fixed size, big-endian
    header                                      JSON: device, versions and size of each
    native                                      the devices' own bytes, one after the other
    SHA-256                                     of all before

It travels inside the blob, beside the network and under the same MAC. A device that exports nothing
compiles the network again.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.plugin import Plugin

FORMAT_VERSION = 1
_MAGIC = b"\x89MULTI\r\n\x1a\n"
_PREFIX = struct.Struct(">10sII")
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Frame:
    """A device's own bytes of the network; empty if it exports none."""

    device: str
    architecture: str
    backend_version: str
    native: bytes = field(default=b"", repr=False)

    def why_unusable(self, plugin: Plugin) -> str:
        """Why the device here cannot use the bytes; empty if it can."""
        pairs = (
            ("device architecture", self.architecture, plugin.architecture),
            ("backend version", self.backend_version, plugin.backend_version),
        )
        return "; ".join(f"{what} {was!r}, here {now!r}" for what, was, now in pairs if was != now)


def write(frames: Iterable[Frame]) -> bytes:
    """The container of the frames, in their order."""
    kept = tuple(frames)
    facts = [[f.device, f.architecture, f.backend_version, len(f.native)] for f in kept]
    header = json.dumps(facts, separators=(",", ":")).encode()
    prefix = _PREFIX.pack(_MAGIC, FORMAT_VERSION, len(header))
    body = b"".join((prefix, header, *(frame.native for frame in kept)))
    return body + hashlib.sha256(body).digest()


def read(data: bytes) -> tuple[Frame, ...]:
    """
    Raises:
        InvalidArgument: these are not the bytes of a container, or of another format, or damaged.
    """
    if len(data) < _PREFIX.size + _DIGEST_BYTES or not data.startswith(_MAGIC):
        _refuse("they do not start as those of a list of devices do")
    _, version, header_size = _PREFIX.unpack_from(data)
    if version != FORMAT_VERSION:
        _refuse(f"their format is version {version}, this server reads {FORMAT_VERSION}")
    end = len(data) - _DIGEST_BYTES
    if hashlib.sha256(memoryview(data)[:end]).digest() != data[end:]:
        _refuse("they are damaged: their SHA-256 does not match")
    position = _PREFIX.size + header_size
    frames = []
    try:
        for device, architecture, backend_version, size in json.loads(
            data[_PREFIX.size : position]
        ):
            native = data[position : position + int(size)]
            frames.append(Frame(str(device), str(architecture), str(backend_version), native))
            position += int(size)
    except (ValueError, TypeError) as error:
        raise _refusal("their header cannot be read") from error
    if position != end:
        _refuse("their lengths do not add up")
    return tuple(frames)


def _refuse(why: str) -> NoReturn:
    raise _refusal(why)


def _refusal(why: str) -> InvalidArgument:
    return InvalidArgument(f"the devices' bytes cannot be read: {why}", field="blob")
