"""Tunes the C library's allocator: it keeps memory between requests, and frees it when told to."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

_MIB = 2**20

# Parameters of mallopt(3), their values, and the environment variables that override them.
# Without them, a 600 KB message costs about 285 page faults, because glibc unmaps its buffers each
# time, and one of 4 MiB takes a fourth more processor time. Much larger thresholds would keep
# unloaded networks resident. By default, glibc makes an arena for every few threads, and each arena
# gets holes: after 50 loads of 100 MB, 240 MB were resident instead of 190. A single arena gives
# 178, but then all threads wait for its lock.
_OPTIONS = (
    ("M_TRIM_THRESHOLD", -1, 64 * _MIB, "MALLOC_TRIM_THRESHOLD_"),
    ("M_TOP_PAD", -2, 16 * _MIB, "MALLOC_TOP_PAD_"),
    ("M_MMAP_THRESHOLD", -3, 16 * _MIB, "MALLOC_MMAP_THRESHOLD_"),
    ("M_ARENA_MAX", -8, 2, "MALLOC_ARENA_MAX"),
)


def tune_allocator(environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Sets glibc's thresholds to suit buffers of message size, and limits its arenas. Call it once,
    before any thread starts.

    Args:
        environment: options that an operator set here are not changed.

    Returns:
        The options that were set, with thresholds in bytes; empty if the C library is not glibc.
    """
    libc = _glibc()
    if libc is None:
        return {}
    return {
        name: value
        for name, parameter, value, variable in _OPTIONS
        if variable not in environment and libc.mallopt(parameter, value)
    }


def release_memory() -> bool:
    """Gives free memory back to the system, for example after a network was unloaded.

    Returns:
        Whether any memory was given back; False if the C library is not glibc.
    """
    libc = _glibc()
    return libc is not None and bool(libc.malloc_trim(ctypes.c_size_t(0)))


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
