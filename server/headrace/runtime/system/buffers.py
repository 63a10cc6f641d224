"""Bytes that are large: passed on in pieces and as views, because copying a view at once, or
joining it with others, holds the interpreter and so all other requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

Buffer: TypeAlias = "bytes | memoryview"

_PIECE_BYTES: Final = 2**18


def pieces(buffers: Iterable[Buffer]) -> Iterator[bytes]:
    """The bytes of all of them, copied, at most 256 KiB at a time."""
    for buffer in buffers:
        for start in range(0, len(buffer), _PIECE_BYTES):
            yield bytes(buffer[start : start + _PIECE_BYTES])


def joined(buffers: Iterable[Buffer]) -> bytes:
    """The bytes of all of them in one piece."""
    return b"".join(list(pieces(buffers)))  # of bytes alone, which lets others run meanwhile
