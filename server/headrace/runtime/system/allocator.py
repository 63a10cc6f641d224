"""The C library's allocator: kept from giving memory back between two requests, made to after."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

_MIB = 2**20

# Parameters of mallopt(3), what they are set to, and the environment variable that wins.
# A 600 KB message otherwise costs some 285 page faults, for glibc unmaps its buffers each time;
# larger thresholds would keep unloaded networks resident. An arena for every few threads, glibc's
# way, leaves holes in each of them: after 50 loads of 100 MB 240 MB were resident instead of 190;
# one arena for all gives 178, but all threads then wait for its lock.
_OPTIONS = (
    ("M_TRIM_THRESHOLD", -1, 64 * _MIB, "MALLOC_TRIM_THRESHOLD_"),
    ("M_TOP_PAD", -2, 16 * _MIB, "MALLOC_TOP_PAD_"),
    ("M_MMAP_THRESHOLD", -3, 4 * _MIB, "MALLOC_MMAP_THRESHOLD_"),
    ("M_ARENA_MAX", -8, 2, "MALLOC_ARENA_MAX"),
)


def tune_allocator(environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Sets glibc's thresholds for buffers of message size, and how many arenas there may be; call
    once, before there are threads.

    Args:
        environment: what an operator set there is left alone.

    Returns:
        What was set, thresholds in bytes; empty where the C library is not glibc.
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
    """Gives free memory back to the system, as after unloading a network.

    Returns:
        Whether there was any; False where the C library is not glibc.
    """
    libc = _glibc()
    return libc is not None and bool(libc.malloc_trim(ctypes.c_size_t(0)))


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
