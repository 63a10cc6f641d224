"""Work of an event loop's calls that takes long, on another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import numpy as np

from headrace.runtime.network.values import Value

T = TypeVar("T")

HEAVY_ELEMENTS: Final = 1 << 14
"""Work on more objects than this, or a sort of more numbers, runs on another thread.

So it does not block the event loop.
"""


_THREADS: Final = ThreadPoolExecutor(8, thread_name_prefix="offload")
"""Those of the event loop may all wait for the disk: for lists of a large repository, or a store
that is slow."""


def on_thread(call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """What a request needs, on another thread."""
    return asyncio.get_running_loop().run_in_executor(_THREADS, call, *arguments)


async def offload(call: Callable[[], T], size: int) -> T:
    """The result of the call. It runs on another thread if `size` elements are many."""
    if size <= HEAVY_ELEMENTS:
        return call()
    return await on_thread(call)


def texts(values: Iterable[Value]) -> int:
    """The number of strings in the values, which have to be encoded one by one."""
    count = 0
    for value in values:
        if isinstance(value, list):
            count += texts(value)
        elif type(value) is np.ndarray and value.dtype.kind == "O":
            count += value.size
    return count
