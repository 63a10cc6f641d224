"""Passes large buffers on in pieces and as views. Copying or joining a large view in one step would
hold the interpreter, and with it all other requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

Buffer: TypeAlias = "bytes | memoryview"

_PIECE_BYTES: Final = 2**18


def pieces(buffers: Iterable[Buffer]) -> Iterator[bytes]:
    """The bytes of all the buffers, copied in pieces of at most 256 KiB."""
    for buffer in buffers:
        for start in range(0, len(buffer), _PIECE_BYTES):
            yield bytes(buffer[start : start + _PIECE_BYTES])


def joined(buffers: Iterable[Buffer]) -> bytes:
    """The bytes of all the buffers in one piece."""
    return b"".join(list(pieces(buffers)))  # a join of only `bytes` lets other threads run
