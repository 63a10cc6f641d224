"""Passes sizes on from a layer's inputs to its outputs."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import onnx_ir as ir

from headrace.runtime.network.constants import const_tensor
from headrace.runtime.network.ranks import MAX_RANK
from headrace.runtime.network.shapes.formulas import Formulas
from headrace.runtime.network.shapes.operators import ELEMENTS, SHAPES, LayerInputs, Shape, operator

_MOST_ELEMENTS: Final = 64
"""The most elements of a list from which shapes are computed."""


class Propagation:
    """What is known of the values of one network, layer after layer.

    Attributes:
        deep: values that are known to have more axes than any tensor has.
    """

    def __init__(self) -> None:
        self.formulas = Formulas()
        self.deep: set[ir.Value] = set()
        self._shapes: dict[ir.Value, Shape] = {}
        self._elements: dict[ir.Value, Shape] = {}

    def of(self, value: ir.Value) -> Shape | None:
        """The size of each axis, or None for an axis of unknown size. None for a value whose rank
        is not known."""
        shape = self._shapes.get(value)
        if shape is None and not value.is_graph_input():
            tensor = const_tensor(value)
            if tensor is not None:
                shape = self._shapes[value] = tuple(map(int, tensor.shape.numpy()))
        return shape

    def elements(self, value: ir.Value) -> Shape | None:
        """The elements of a scalar or of a short list of integers, as far as they follow from
        shapes. None if it is something else, or if its length is not known."""
        elements = self._elements.get(value)
        if elements is None and not value.is_graph_input():
            tensor = const_tensor(value)
            if tensor is not None and _is_list(tensor):
                elements = self._elements[value] = tuple(tensor.numpy().ravel().tolist())
        return elements

    def layer(self, node: ir.Node) -> None:
        """Finds out about the node's outputs."""
        self.formulas.layer = node.name or ""
        given = LayerInputs(node, self.formulas, self)
        with suppress(TypeError):  # an attribute is that of a call, or has a wrong type
            self._layer(given, operator(node))

    def _layer(self, given: LayerInputs, name: str) -> None:
        outputs = given.node.outputs
        rule, listed = SHAPES.get(name), ELEMENTS.get(name)
        if rule is None:
            return
        for value, shape in zip(outputs, rule(given) or (), strict=False):
            if shape is not None and len(shape) > MAX_RANK:
                self.deep.add(value)
            elif shape is not None:
                self._shapes[value] = shape
        elements = listed(given) if listed is not None else None
        if elements is None or len(elements) > _MOST_ELEMENTS:
            return
        if self._shapes.get(outputs[0]) in ((), (len(elements),)):
            self._elements[outputs[0]] = elements


def _is_list(tensor: ir.TensorProtocol) -> bool:
    whole = tensor.dtype in (ir.DataType.INT64, ir.DataType.INT32)
    return whole and tensor.shape.rank() <= 1 and tensor.size <= _MOST_ELEMENTS
