"""The memory of networks that nobody needs any more.

A graph's nodes and values refer to each other, so its weights stay until Python happens to look for
garbage; for large ones it is made to look.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from typing import TypeVar

from headrace.runtime.allocator import release_memory
from headrace.runtime.errors import chain
from headrace.runtime.network import Network

T = TypeVar("T")

_LARGE_BYTES = 2**20
"""Of weights; less is left to Python's own collector."""


def is_large(network: Network | None) -> bool:
    """Whether it is worth looking for once it has become garbage."""
    return network is not None and network.weight_bytes > _LARGE_BYTES


def use(read: Callable[[], Network], task: Callable[[Network], T]) -> T:
    """What `task` makes of a network that is not kept, and whose memory is given back."""
    network = read()
    large = is_large(network)
    try:
        return task(network)
    except BaseException as error:
        if large:
            forget_locals(error)
        raise
    finally:
        del network
        if large:
            collect_garbage()


def collect_garbage() -> None:
    """Gives back the memory of networks that nobody refers to any more."""
    gc.collect()
    release_memory()


def forget_locals(error: BaseException | None) -> None:
    """Empties the frames in an error's traceback, which hold what was being loaded."""
    for each in chain(error):
        traceback.clear_frames(each.__traceback__)
