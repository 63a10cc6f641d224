"""Host memory that a GPU reads and writes by itself, because the memory is pinned."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Final

import numpy as np

from headrace.runtime.errors import ResourceExhausted
from headrace.runtime.network.values import Array

_PORTABLE: Final = 1  # cudaHostAllocPortable: pinned for every GPU


class PinnedMemory:
    """Allocates pinned memory. Thread-safe.

    Args:
        library: a library that gives access to the CUDA runtime's functions.
        device_id: the GPU whose context allocates, so that no other GPU gets a context.
    """

    def __init__(self, library: Any, device_id: int) -> None:
        self._library = library
        self._device_id = device_id

    def allocate(self, size: int) -> Array:
        """An array uint8[size]. Its memory is freed with its last view.

        Raises:
            ResourceExhausted: no memory is left.
        """
        pointer = ctypes.c_void_p()
        self._library.cudaSetDevice(ctypes.c_int(self._device_id))
        code = self._library.cudaHostAlloc(
            ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)), ctypes.c_uint(_PORTABLE)
        )
        if code or not pointer.value:
            raise ResourceExhausted(f"no {size} bytes of pinned memory (CUDA error {code})")
        owner = (ctypes.c_uint8 * size).from_address(pointer.value)
        given_back = weakref.finalize(owner, self._library.cudaFreeHost, pointer)
        given_back.atexit = False  # the process frees it; CUDA may have ended before
        return np.ctypeslib.as_array(owner)
