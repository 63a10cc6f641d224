"""Frees the memory of networks that are no longer needed.

Their graphs are freed one by one (`graph_memory.py`). Python's collector, which stops every thread
while it looks at all there is, looks seldom. Only if large weights are still there is it made to.
"""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable
from typing import TypeVar

import onnx_ir as ir

from headrace.runtime.errors import HeadraceError, Internal, chain, forget_frames
from headrace.runtime.network.network import Network
from headrace.runtime.system.allocator import release_memory
from headrace.runtime.system.graph_memory import free_graphs

T = TypeVar("T")

_OLD_GENERATIONS = 1000
"""How many times Python looks at what is new before it looks at everything; it comes to some seven
million objects that have come and not gone."""

_LARGE_BYTES = 2**20
"""A network with fewer bytes of weights is not looked at."""


def look_for_garbage_seldom() -> None:
    """Has Python look at everything seldom, and never again at what there is now."""
    gc.collect()
    gc.freeze()
    new, middle, _ = gc.get_threshold()
    gc.set_threshold(new, middle, _OLD_GENERATIONS)


class Weights:
    """The tensors of a network, without keeping them.

    Args:
        network: None has none.
    """

    def __init__(self, network: Network | None) -> None:
        large = network is not None and network.weight_bytes > _LARGE_BYTES
        self._tensors = _tensors(network) if network is not None and large else []

    def give_back(self) -> None:
        """Gives their memory back to the system; the caller refers to the network no more."""
        free_graphs()
        if any(tensor() is not None for tensor in self._tensors):
            gc.collect()  # something that has made a ring of references holds them
        if self._tensors:
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
    """All of them, which graphs made of the network share."""
    values = network.model.graph.initializers.values()
    tensors = [value.const_value for value in values if value.const_value is not None]
    for node in network.nodes():
        tensors += (
            attribute.as_tensor()
            for attribute in node.attributes.values()
            if not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR
        )
    return [weakref.ref(tensor) for tensor in tensors]


def forget_locals(error: BaseException | None) -> None:
    """Drops what an error's traceback keeps of a load. The traceback of a bug stays, for the log,
    with its frames emptied; they still hold what their functions had from around them."""
    if isinstance(error, HeadraceError) and not isinstance(error, Internal):
        forget_frames(error)
    for each in chain(error):
        traceback.clear_frames(each.__traceback__)
