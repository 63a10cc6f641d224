"""Gives the inputs of a network known sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from headrace.runtime.network.network import Network
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.network.values import Array, Value

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""By name of input."""
Key: TypeAlias = tuple[tuple[tuple[int, ...], bytes], ...]
"""For each input its shape, and the bytes of its elements if sizes may follow from them."""

_MOST_SIZES: Final = 64
"""The most elements of an input that holds sizes."""
_HOLDING_SIZES: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "CenterCropPad": (1,),
        "ConstantOfShape": (0,),
        "CumSum": (1,),
        "Expand": (1,),
        "OneHot": (1,),
        "Pad": (1,),
        "Range": (0, 1, 2),
        "Reduce": (1,),  # also all operators whose names begin with it
        "Reshape": (1,),
        "Resize": (2, 3),
        "Slice": (1, 2, 3, 4),
        "Split": (1,),
        "Squeeze": (1,),
        "Tile": (1,),
        "TopK": (1,),
        "Unsqueeze": (1,),
        "Upsample": (1,),
    }
)
"""The inputs of layers from which sizes follow."""
_LIKELY: Final = ((2, 64), (1, 64))
"""Sizes that first axes and others are given to find out whether a network compiles. Some networks
take one row at a time."""


def sizing_inputs(network: Network) -> frozenset[str]:
    """The inputs from whose elements sizes follow."""
    return frozenset(
        value.name or ""
        for value in network.model.graph.inputs
        if any(holds_sizes(node, at) for node, at in value.uses())
    )


def holds_sizes(node: ir.Node, at: int) -> bool:
    """Whether sizes follow from the elements of the layer's input."""
    kind = "Reduce" if node.op_type.startswith("Reduce") else node.op_type
    return at in _HOLDING_SIZES.get(kind, ())


def key_of(network: Network, inputs: Mapping[str, Value], sizing: frozenset[str]) -> Key | None:
    """What a request's compilation depends on. None if an input has no elements, or if sizes follow
    from a long input."""
    found = []
    for port in network.inputs:
        array = inputs[port.name]
        shape: tuple[int, ...] = array.shape  # type: ignore[union-attr]
        if 0 in shape:
            return None
        elements = b""
        if port.name in sizing:
            if array.size > _MOST_SIZES:  # type: ignore[union-attr]
                return None
            elements = array.tobytes()  # type: ignore[union-attr]
        found.append((shape, elements))
    return tuple(found)


def of_key(network: Network, key: Key, inputs: Mapping[str, Value]) -> Network:
    """The network for requests with this key, one of which has these inputs."""
    shapes = {port.name: shape for port, (shape, _) in zip(network.inputs, key, strict=True)}
    values = {
        port.name: np.array(inputs[port.name])
        for port, (_, elements) in zip(network.inputs, key, strict=True)
        if elements
    }
    return with_sizes(network, shapes, values)


def with_sizes(network: Network, shapes: Shapes, values: Mapping[str, Array]) -> Network:
    """The network with these shapes of its inputs.

    Args:
        values: of inputs that become constants.
    """
    fixed = network.clone()
    graph = fixed.model.graph
    for value in graph.inputs:
        if (shape := shapes.get(value.name or "")) is not None:
            value.shape = ir.Shape(shape)
    for value in [each for each in graph.inputs if each.name in values]:
        value.const_value = ir.tensor(values[value.name or ""], name=value.name)
        graph.inputs.remove(value)
        graph.register_initializer(value)
    return fixed


def inferred_anew(network: Network, shapes: Shapes) -> Network:
    """The network with these shapes of its inputs, and with all sizes that follow from them."""
    fixed = with_sizes(network, shapes, {})
    for node in fixed.model.graph:
        for value in node.outputs:
            if value.shape is not None and not value.shape.is_static():
                value.shape = None
    infer_types(fixed.model)
    return fixed


def text_of(key: Key) -> str:
    """The shapes, as ``1x3x224x224, 1``."""
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape, _ in key)


def fixed_shapes(network: Network) -> Shapes | None:
    """The shapes of the inputs, if the network says all of them."""
    found = {}
    for port in network.inputs:
        if port.shape is None or not all(isinstance(size, int) for size in port.shape):
            return None
        found[port.name] = tuple(int(str(size)) for size in port.shape)
    return found


def likely_shapes(network: Network) -> Iterator[Shapes]:
    """Shapes that requests to the network may have. Axes of one symbol have one size."""
    for rows, likely in _LIKELY:
        sizes: dict[str, int] = {}
        found = {}
        for port in network.inputs:
            if port.shape is None:
                return
            found[port.name] = tuple(
                size
                if isinstance(size, int)
                else sizes.setdefault(str(size or (port.name, at)), likely if at else rows)
                for at, size in enumerate(port.shape)
            )
        yield found
