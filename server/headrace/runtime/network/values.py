"""Values that enter and leave a network: tensors, sequences of values, absent optionals.

A device that computes in host memory takes NumPy arrays as they are, so the common value is an
`ndarray`. A `Tensor` wraps memory that needs more said about it: where it lies, and a lease that
keeps the buffer from its owner until the backend has let go of it.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


class Memory(enum.Enum):
    """Where a tensor's buffer lies."""

    HOST = "host"
    SHARED = "shared"  # host memory that another process maps too
    DEVICE = "device"


class Lease:
    """A counted claim on a buffer; the owner gets it back when the last claim is released.

    Thread-safe. `_lock` guards `_count` alone; `on_release` runs outside it, once.
    """

    __slots__ = ("_count", "_lock", "_on_release")

    def __init__(self, on_release: Callable[[], None]) -> None:
        self._on_release = on_release
        self._count = 1
        self._lock = threading.Lock()

    def acquire(self) -> Lease:
        with self._lock:
            if self._count == 0:
                raise RuntimeError("the lease has ended; its buffer may be in use elsewhere")
            self._count += 1
        return self

    def release(self) -> None:
        with self._lock:
            if self._count == 0:
                raise RuntimeError("lease released more often than acquired")
            self._count -= 1
            ended = self._count == 0
        if ended:
            self._on_release()


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A view of a buffer: dtype, shape, kind of memory, writability, and the lease on it.

    `array` is the host view; a device tensor keeps its handle in `handle` and has no host view.
    """

    array: Array | None
    memory: Memory = Memory.HOST
    lease: Lease | None = None
    handle: Any = None
    device_dtype: np.dtype[Any] | None = None
    device_shape: tuple[int, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        if self.array is not None:
            return self.array.dtype
        assert self.device_dtype is not None
        return self.device_dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape if self.array is not None else self.device_shape

    @property
    def writable(self) -> bool:
        return self.array is None or bool(self.array.flags.writeable)


Value: TypeAlias = "Array | Tensor | list[Value] | None"


def host(value: Value) -> Array | list[Any] | None:
    """The value as NumPy arrays, without a copy.

    Raises:
        TypeError: a tensor in device memory, which its device must copy to the host first.
    """
    if isinstance(value, Tensor):
        if value.array is None:
            raise TypeError("a tensor in device memory has no host view")
        return value.array
    if isinstance(value, list):
        return [host(element) for element in value]
    return value


def size_bytes(value: Value) -> int:
    """Bytes of the elements; strings count their pointers, not their text."""
    if isinstance(value, list):
        return sum(size_bytes(element) for element in value)
    if isinstance(value, Tensor):
        return int(value.dtype.itemsize * np.prod(value.shape, dtype=np.int64))
    return 0 if value is None else int(value.nbytes)
