"""Known bytes around inputs and in unused memory, which show up where a backend reads too far.

Inputs lie between two guard zones. glibc fills memory that is allocated or freed with a byte that
`fill_heap` chooses. A request that runs twice, with other bytes in both places, gives the same
outputs twice unless these depend on memory that the request does not own.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

_GUARD_BYTES = 4096
_M_PERTURB = -6
_ALIGNMENT = 64

ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=2"}
"""For a process that uses `fill_heap`: memory from the cache of a thread is not filled. As in a
server, new threads share arenas. One of its own would not get any where the limit is near, and
ONNX Runtime does not survive that while it loads a model."""

PATTERNS = (b"\xc3\x5a\x96\xe7\x1d\xb8\x42\xf1", b"\x8e\x71\x3b\xd4\xa9\x56\xcf\x2d")
"""What the guard zones of the first and of the second run hold."""

UNWRITTEN = "an output holds memory that nobody wrote"
"""What `shown` says of bytes of unused memory. Numbers of one byte may have these values, too."""

_FILLS = (0x5A, 0xB7)
# Freed memory is filled with the byte, and allocated memory with its complement.
_FILLED = tuple(bytes([byte ^ flip]) * 12 for byte in _FILLS for flip in (0, 0xFF))


def fill_heap(run: int) -> None:
    """Has unused memory filled with the byte of the first (0) or second (1) run."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_PERTURB, _FILLS[run])


class GuardedArray:
    """A copy of an array between two guard zones.

    Attributes:
        array: the copy, aligned to 64 bytes.
    """

    def __init__(self, array: np.ndarray[Any, Any], run: int) -> None:
        size = array.nbytes
        words = (size + 2 * _GUARD_BYTES + _ALIGNMENT) // 8 + 1
        self._bytes = np.frombuffer(bytearray(PATTERNS[run] * words), np.uint8)
        start = _GUARD_BYTES + -(self._bytes.ctypes.data + _GUARD_BYTES) % _ALIGNMENT
        self.array = self._bytes[start : start + size].view(array.dtype).reshape(array.shape)
        self.array[...] = array
        self._before = self._bytes.copy()

    def is_intact(self) -> bool:
        """Whether the array and the guard zones are unchanged."""
        return bool(np.array_equal(self._bytes, self._before))


def guarded(value: Any, run: int) -> tuple[Any, list[GuardedArray]]:
    """A request's input with guard zones, and what to check afterwards; texts and sequences of
    texts stay as they are."""
    if isinstance(value, list):
        parts = [guarded(each, run) for each in value]
        return [part for part, _ in parts], [guard for _, guards in parts for guard in guards]
    if not isinstance(value, np.ndarray) or value.dtype == object:
        return value, []
    guard = GuardedArray(value, run)
    return guard.array, [guard]


def shown(outputs: dict[str, Any], run: int) -> str:
    """A description of the known bytes in an output; empty if it holds none."""
    for value in outputs.values():
        if isinstance(value, np.ndarray) and value.dtype != object:
            found = value.tobytes()
            if PATTERNS[run] in found:
                return "an output holds bytes from beside an input"
            if any(fill in found for fill in _FILLED):
                return UNWRITTEN
    return ""
