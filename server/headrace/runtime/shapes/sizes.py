"""The sizes of a network's values, as formulas over the sizes of its inputs.

Declared shapes count for nothing, but those of the network's inputs, which are checked before a
run. A size that follows from values of a request, or from a layer that is not in `operators`, is
not known. Nor is any inside a loop that follows from the turn before.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from headrace.runtime.intake.naming import bodies
from headrace.runtime.network.constants import const_tensor
from headrace.runtime.network.ranks import MAX_RANK, exceeds
from headrace.runtime.shapes.formulas import Formulas, Unsure
from headrace.runtime.shapes.operators import ELEMENTS, SHAPES, Given, Shape, operator
from headrace.runtime.system.interruption import wanted

_MOST_ELEMENTS: Final = 64
"""The most elements of a list from which shapes are computed."""


class Sizes:
    """Finds the sizes of all values of a network at once.

    Attributes:
        deep: values that are known to have more axes than any tensor has.
    """

    def __init__(self, model: ir.Model) -> None:
        self.deep: set[ir.Value] = set()
        self._functions = model.functions
        self._outputs = model.graph.outputs
        self._formulas = Formulas()
        self._shapes: dict[ir.Value, Shape] = {}
        self._elements: dict[ir.Value, tuple[Unsure, ...]] = {}
        for value in model.graph.inputs:
            plain = isinstance(value.type, ir.TensorType | ir.SparseTensorType)
            if value.const_value is not None:  # a request gives it no other shape
                self._shapes[value] = tuple(map(int, value.const_value.shape.numpy()))
            elif plain and value.shape is not None and value.name:
                self._shapes[value] = tuple(
                    size if isinstance(size, int) else self._formulas.size_of_input(value.name, at)
                    for at, size in enumerate(value.shape)
                )
        self._graph(model.graph)

    def of(self, value: ir.Value) -> Shape | None:
        """The size of each axis, or None for an axis of unknown size. None for a value whose rank
        is not known."""
        found = self._shapes.get(value)
        if found is None and not value.is_graph_input():
            tensor = const_tensor(value)
            if tensor is not None:
                found = self._shapes[value] = tuple(map(int, tensor.shape.numpy()))
        return found

    def elements(self, value: ir.Value) -> tuple[Unsure, ...] | None:
        """The elements of a scalar or of a short list of integers, as far as they follow from
        shapes. None if it is something else, or if its length is not known."""
        found = self._elements.get(value)
        if found is None and not value.is_graph_input():
            tensor = const_tensor(value)
            if tensor is not None and _is_list(tensor):
                found = self._elements[value] = tuple(tensor.numpy().ravel().tolist())
        return found

    def count(self, value: ir.Value) -> Unsure:
        """The number of the value's elements."""
        shape = self.of(value)
        return None if shape is None else self._formulas.product(shape)

    def copy(self, value: ir.Value, made: ir.Value) -> None:
        """Gives a new value the sizes of another one."""
        shape = self.of(value)
        if shape is not None:
            self._shapes[made] = shape

    def certain_outputs(self) -> frozenset[str]:
        """The network's outputs that have the shape that it declares, in every run."""
        return frozenset(
            value.name
            for value in self._outputs
            if value.name and value.shape is not None and self.of(value) == tuple(value.shape)
        )

    def _graph(self, graph: ir.Graph) -> None:
        for node in wanted(graph):
            for _, body in bodies(node):
                self._slices(node, body)
                self._graph(body)
            if exceeds(node):
                self.deep.update(node.outputs)
            elif operator(node) == "If":
                self._branches(node)
            elif node.op_identifier() not in self._functions:
                self._layer(node)

    def _slices(self, node: ir.Node, body: ir.Graph) -> None:
        """Gives the body of a Scan the shapes of the slices that it gets."""
        given = node.attributes.get("num_scan_inputs")
        if node.op_type != "Scan" or given is None or given.is_ref():
            return
        count = given.as_int()
        axes = node.attributes.get_ints("scan_input_axes", ()) or [0] * count
        if not 0 <= count == len(axes) <= min(len(node.inputs), len(body.inputs)):
            return
        for inner, outer, axis in zip(
            body.inputs[-count:], node.inputs[-count:], axes, strict=False
        ):
            shape = self.of(outer) if outer is not None else None
            if shape is not None and -len(shape) <= axis < len(shape):
                rest = list(shape)
                del rest[axis]
                self._shapes[inner] = tuple(rest)

    def _branches(self, node: ir.Node) -> None:
        """Gives an If the sizes that both of its branches have."""
        branches = [body.outputs for _, body in bodies(node)]
        for value, *ends in zip(node.outputs, *branches, strict=False):
            shapes = [self.of(end) for end in ends]
            ranks = {None if shape is None else len(shape) for shape in shapes}
            if len(shapes) == 2 and len(ranks) == 1 and None not in ranks:
                pairs = zip(*[shape or () for shape in shapes], strict=True)
                self._shapes[value] = tuple(one if one == other else None for one, other in pairs)

    def _layer(self, node: ir.Node) -> None:
        name = operator(node)
        rule = SHAPES.get(name)
        if rule is None:
            return
        self._formulas.layer = node.name or ""
        given = Given(node, self._formulas, self)
        for value, shape in zip(node.outputs, rule(given) or (), strict=False):
            if shape is not None and len(shape) > MAX_RANK:
                self.deep.add(value)
            elif shape is not None:
                self._shapes[value] = shape
        listed = ELEMENTS.get(name)
        if listed is None:
            return
        shape, elements = self._shapes.get(node.outputs[0]), listed(given)
        if elements is None or len(elements) > _MOST_ELEMENTS:
            return
        if shape in ((), (len(elements),)):
            self._elements[node.outputs[0]] = elements


def _is_list(tensor: ir.TensorProtocol) -> bool:
    whole = tensor.dtype in (ir.DataType.INT64, ir.DataType.INT32)
    return whole and tensor.shape.rank() <= 1 and tensor.size <= _MOST_ELEMENTS
