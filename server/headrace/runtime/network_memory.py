"""The memory of networks that nobody needs any more.

A graph's nodes and values refer to each other, so its weights stay until Python happens to look for
garbage. Python looks at all there is in one go, and stops every thread meanwhile: 0.1 s for a graph
of a thousand layers. So it looks seldom, and a graph is taken apart when its model goes, which
frees it piece by piece.
"""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import onnx_ir as ir

from headrace.runtime.allocator import release_memory
from headrace.runtime.errors import HeadraceError, Internal, chain, forget_frames

if TYPE_CHECKING:
    from headrace.runtime.network import Network

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


def owner(model: ir.Model) -> ir.Model:
    """`model`, whose graphs are taken apart as soon as nobody refers to it any more. Whoever uses a
    node or a value of them therefore keeps the model, or its network."""
    weakref.finalize(model, _take_apart, model.graph, model.functions).atexit = False
    return model


def _take_apart(graph: ir.Graph, functions: Mapping[ir.OperatorIdentifier, ir.Function]) -> None:
    """Frees the tensors at once, and leaves little for Python to find."""
    roots = (graph, *(function.graph for function in functions.values()))
    graphs = [each for root in roots for each in (root, *root.subgraphs())]
    for each in graphs:
        each.outputs.clear()
        for node in each:
            for at in range(len(node.inputs)):
                node.replace_input_with(at, None)
    for each in graphs:
        for node in list(each):
            each.remove(node)
            node.resize_outputs(0)
            node.attributes.clear()
        each.inputs.clear()
        each.initializers.clear()


class Weights:
    """The tensors of a network, without keeping them.

    Args:
        network: None has none.
    """

    def __init__(self, network: Network | None) -> None:
        large = network is not None and network.weight_bytes > _LARGE_BYTES
        self._tensors = _tensors(network) if network is not None and large else []

    def __bool__(self) -> bool:
        """Whether there are so many that somebody has to see to their end."""
        return bool(self._tensors)

    def give_back(self) -> None:
        """Gives their memory back to the system, when nobody refers to the network any more."""
        if any(tensor() is not None for tensor in self._tensors):
            gc.collect()  # something that has made a ring of references holds them
        release_memory()


def use(read: Callable[[], Network], task: Callable[[Network], T]) -> T:
    """What `task` makes of a network that neither it nor what it returns keeps, and whose memory is
    given back."""
    network = read()
    weights = Weights(network)
    try:
        return task(network)
    except BaseException as error:
        if weights:
            forget_locals(error)
        raise
    finally:
        del network
        if weights:
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
    """Lets go of what an error's traceback holds of a load. The traceback of a bug stays, for the
    log, with its frames emptied; they still hold what their functions had from around them."""
    if isinstance(error, HeadraceError) and not isinstance(error, Internal):
        forget_frames(error)
    for each in chain(error):
        traceback.clear_frames(each.__traceback__)
