"""Values that enter and leave a network: tensors, sequences of values, absent optionals.

A tensor is a NumPy array in host memory. An array lives as long as it is referred to: a job holds
its inputs until the backend has returned, also when its caller has left before. So a buffer is free
once the last array that views it is gone.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

Value: TypeAlias = "Array | list[Value] | None"


def size_bytes(value: Value) -> int:
    """Bytes of the elements; strings count their pointers, not their text."""
    if isinstance(value, list):
        return sum(size_bytes(element) for element in value)
    return 0 if value is None else int(value.nbytes)
