"""A file of the cache: one compiled network.

    magic, format version, two lengths      fixed size, big-endian
    key                                     what the network depends on, as text
    native                                  the backend's own bytes
    MAC                                     HMAC-SHA256 of all before

Unlike an export blob (`blob.py`), an entry does not hold the network that it was compiled from,
because the reader of an entry has the network. So only half as many bytes are read and verified.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Self

FORMAT_VERSION = 1
OVERHEAD_BYTES = 64
"""The most bytes that an entry takes besides its key and its native bytes."""

_MAGIC = b"\x89hrcache\r\n\x1a\n"
_PREFIX = struct.Struct(">12sIQQ")
_MAC_BYTES = 32


@dataclass(frozen=True, slots=True)
class CacheKey:
    """
    Attributes:
        text: everything that the compiled network depends on, as canonical JSON.
    """

    text: str

    @classmethod
    def of(cls, facts: object) -> Self:
        """The key of what JSON can hold."""
        return cls(json.dumps(facts, sort_keys=True, separators=(",", ":")))

    @property
    def name(self) -> str:
        """The SHA-256 of `text` in hexadecimal, after which the entry's file is named."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class EntryRefused(Exception):
    """Says why an existing entry is not used. Callers of the API never see it, because the network
    is compiled instead."""


def write(key: CacheKey, native: bytes, secret: bytes) -> Iterator[bytes]:
    """The file's bytes in pieces."""
    text = key.text.encode()
    prefix = _PREFIX.pack(_MAGIC, FORMAT_VERSION, len(text), len(native))
    yield prefix
    yield text
    yield native
    yield _mac(secret, prefix, text, native)


def read(file: IO[bytes], size: int, key: CacheKey, secret: bytes) -> bytes:
    """The native bytes of an entry.

    Args:
        size: the file's size in bytes.
        key: the key that the entry must have.

    Raises:
        EntryRefused: it is not an entry, is damaged, belongs to another network, or is signed with
            another secret.
        OSError: the file cannot be read.
    """
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        raise EntryRefused("it is damaged")
    magic, version, key_size, native_size = _PREFIX.unpack(prefix)
    if magic != _MAGIC or version != FORMAT_VERSION:
        raise EntryRefused("it is not an entry, or of another version")
    if size != _PREFIX.size + key_size + native_size + _MAC_BYTES:
        raise EntryRefused("it is damaged")
    text = key.text.encode()
    if key_size != len(text) or file.read(key_size) != text:
        raise EntryRefused("it is another network's")
    native = file.read(native_size)
    if not hmac.compare_digest(_mac(secret, prefix, text, native), file.read(_MAC_BYTES)):
        raise EntryRefused("it is damaged, or not signed with this server's key")
    return native


def _mac(secret: bytes, *parts: bytes) -> bytes:
    # The prefix has a fixed size and the other parts' lengths, so their bounds are unambiguous.
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(part)
    return mac.digest()
