"""The memory of networks that nobody needs any more.

A graph's nodes and values refer to each other, so its weights stay until Python happens to look for
garbage; for large ones it is made to look. Python looks at all there is in one go, and stops every
thread meanwhile: 0.1 s for a graph of a thousand layers. So it looks seldom by itself, and a graph
that was only needed for a while is taken apart, which frees it piece by piece.
"""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable
from typing import TypeVar

import onnx_ir as ir

from headrace.runtime.errors import chain
from headrace.runtime.network.network import Network
from headrace.runtime.system.allocator import release_memory

T = TypeVar("T")

_OLD_GENERATIONS = 1000
"""How many times Python looks at what is new before it looks at everything; it comes to some seven
million objects that have come and not gone."""

_LARGE_BYTES = 2**20
"""Of weights; less is left to Python's own collector."""


def look_for_garbage_seldom() -> None:
    """Has Python look at everything seldom, and never again at what there is now."""
    gc.collect()
    gc.freeze()
    new, middle, _ = gc.get_threshold()
    gc.set_threshold(new, middle, _OLD_GENERATIONS)


def take_apart(model: ir.Model) -> None:
    """Frees the graphs of `model`, of which nobody may hold a part any more: the tensors at once,
    and little is left for Python to find."""
    graphs = list(model.graphs())
    for graph in graphs:
        graph.outputs.clear()
        for node in graph:
            for at in range(len(node.inputs)):
                node.replace_input_with(at, None)
    for graph in graphs:
        for node in list(graph):
            graph.remove(node)
            node.resize_outputs(0)
            node.attributes.clear()
        graph.inputs.clear()
        graph.initializers.clear()


def is_large(network: Network | None) -> bool:
    """Whether it is worth looking for once it has become garbage."""
    return network is not None and network.weight_bytes > _LARGE_BYTES


def use(read: Callable[[], Network], task: Callable[[Network], T]) -> T:
    """What `task` makes of a network that neither it nor what it returns keeps, and whose memory is
    given back."""
    network = read()
    large = is_large(network)
    weights = _weights(network) if large else []
    try:
        return task(network)
    except BaseException as error:
        if large:
            forget_locals(error)
        raise
    finally:
        take_apart(network.model)
        del network
        if any(weight() is not None for weight in weights):
            collect_garbage()  # a graph made of it holds them, and waits for Python to look
        elif large:
            release_memory()


def _weights(network: Network) -> list[weakref.ref[ir.TensorProtocol]]:
    """Its tensors, which graphs made of it share."""
    values = network.model.graph.initializers.values()
    tensors = [value.const_value for value in values if value.const_value is not None]
    for node in network.nodes():
        tensors += (
            attribute.as_tensor()
            for attribute in node.attributes.values()
            if not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR
        )
    return [weakref.ref(tensor) for tensor in tensors]


def collect_garbage() -> None:
    """Gives back the memory of networks that nobody refers to any more."""
    gc.collect()
    release_memory()


def forget_locals(error: BaseException | None) -> None:
    """Empties the frames in an error's traceback, which hold what was being loaded."""
    for each in chain(error):
        traceback.clear_frames(each.__traceback__)
