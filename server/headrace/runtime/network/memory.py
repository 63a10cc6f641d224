"""Frees the memory of networks that are no longer needed.

Their graphs are freed one by one (`graph_memory.py`). A full run of Python's garbage collector
stops every thread, so it runs seldom (`garbage.py`). This module starts one only if large weights
are still in memory after their graph was freed.
"""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable
from typing import TypeVar

import onnx_ir as ir

from headrace.runtime.errors import HeadraceError, Internal, chain, forget_frames
from headrace.runtime.network.constants import tensor_of
from headrace.runtime.network.network import Network
from headrace.runtime.system import garbage
from headrace.runtime.system.allocator import release_memory
from headrace.runtime.system.graph_memory import free_graphs

T = TypeVar("T")

_LARGE_BYTES = 2**20
"""A network that does not have more bytes of weights than this is not tracked."""

_MANY_LAYERS = 1000
"""Freeing a network of more layers takes long, so who asks for it waits. Otherwise queries would
make networks faster than they are freed."""


class Weights:
    """Weak references to the tensors of a network.

    Args:
        network: None has no tensors and no layers. Those of a network that is kept for later loads,
            or whose model was never read, are not looked for.
        stays: whether the network itself is kept for a later load. What was made of it is not.
    """

    def __init__(self, network: Network | None, *, stays: bool = False) -> None:
        self._stays = network if stays else None
        free = network is not None and not network.is_kept and not stays
        free = free and network is not None and network.is_read
        large = network is not None and free and network.weight_bytes > _LARGE_BYTES
        self._tensors = _tensors(network) if network is not None and large else []
        self._layers = 0 if network is None else network.size
        self._wait = bool(self._tensors) or self._layers > _MANY_LAYERS

    def give_back(self, *, loaded: bool = False) -> None:
        """Gives the memory of the tensors back to the system. The caller must not refer to the
        network any more. A small network does not wait while another thread frees a large one:
        that thread frees it too.

        Args:
            loaded: whether `garbage.count_loaded` was told of the network.
        """
        free_graphs(wait=self._wait)
        if loaded:
            garbage.count_loaded(-self._layers)
        if any(tensor() is not None for tensor in self._tensors):
            garbage.look_at_all()  # a cycle of references keeps the tensors alive
        else:
            garbage.look_if_much_is_left()
        if self._stays is not None:
            self._stays.free_memory()
        if self._tensors or self._stays is not None:
            release_memory()


def use(read: Callable[[], Network], task: Callable[[Network], T]) -> T:
    """Runs `task` on a network, and frees the network's memory afterwards. Neither the task nor its
    result may keep the network."""
    network = read()
    weights = Weights(network)
    try:
        return task(network)
    except BaseException as error:
        forget_locals(error)
        raise
    finally:
        del network
        weights.give_back()


def _tensors(network: Network) -> list[weakref.ref[ir.TensorProtocol]]:
    """All tensors of the network. Graphs that are made from the network share them."""
    values = network.model.graph.initializers.values()
    tensors = [value.const_value for value in values if value.const_value is not None]
    for node in network.nodes():
        tensors += (
            tensor_of(attribute)
            for attribute in node.attributes.values()
            if not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR
        )
    return [weakref.ref(tensor) for tensor in tensors]


def forget_locals(error: BaseException | None) -> None:
    """Drops the references to a load that an error's traceback keeps. The traceback of a bug stays
    for the log, but the local variables in its frames are cleared. The frames still refer to
    variables that their functions took from enclosing functions."""
    if isinstance(error, HeadraceError) and not isinstance(error, Internal):
        forget_frames(error)
    for cause in chain(error):
        traceback.clear_frames(cause.__traceback__)
