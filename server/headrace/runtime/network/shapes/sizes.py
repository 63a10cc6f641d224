"""The sizes of a network's values, as formulas over the sizes of its inputs.

Declared shapes count for nothing, but those of the network's inputs, which are checked before a
run. A size that follows from values of a request, or from a layer that is not in `operators`, is
not known. Nor is any inside a loop that follows from the turn before.
"""

from __future__ import annotations

import onnx_ir as ir

from headrace.runtime.intake.naming import bodies, walk
from headrace.runtime.network.ranks import exceeds
from headrace.runtime.network.shapes.formulas import Unsure
from headrace.runtime.network.shapes.operators import operator
from headrace.runtime.network.shapes.propagation import Propagation
from headrace.runtime.system.interruption import wanted


class Sizes(Propagation):
    """Finds the sizes of all values of a network at once."""

    def __init__(self, model: ir.Model) -> None:
        super().__init__()
        self._functions = model.functions
        self._outputs = model.graph.outputs
        for value in model.graph.inputs:
            plain = isinstance(value.type, ir.TensorType | ir.SparseTensorType)
            if value.const_value is not None:  # a request gives it no other shape
                self._shapes[value] = tuple(map(int, value.const_value.shape.numpy()))
            elif plain and value.shape is not None and value.name:
                self._shapes[value] = tuple(
                    size if isinstance(size, int) else self.formulas.size_of_input(value.name, at)
                    for at, size in enumerate(value.shape)
                )
        self._graph(model.graph)

    def count(self, value: ir.Value) -> Unsure:
        """The number of the value's elements."""
        shape = self.of(value)
        return None if shape is None else self.formulas.product(shape)

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

    def _graph(self, graph: ir.Graph | ir.Function) -> None:
        for node in wanted(graph):
            for _, body in bodies(node):
                self._slices(node, body)
                self._graph(body)
            if exceeds(node):
                self.deep.update(node.outputs)
            elif operator(node) == "If":
                self._branches(node)
            elif (function := self._functions.get(node.op_identifier())) is not None:
                self._call(node, function)
            else:
                self.layer(node)

    def _call(self, node: ir.Node, function: ir.Function) -> None:
        """Goes through the function with the shapes of this call alone."""
        deep = set(self.deep)
        made = (value for inner in walk(function) for value in inner.outputs)
        for value in (*function.inputs, *made):
            self._shapes.pop(value, None)
            self._elements.pop(value, None)
        for inner, outer in zip(function.inputs, node.inputs, strict=False):
            if outer is not None:
                self.copy(outer, inner)
        self._graph(function)
        if self.deep > deep:
            self.deep = deep | {*node.outputs}
        for inner, outer in zip(function.outputs, node.outputs, strict=False):
            self.copy(inner, outer)

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
            self._shapes.pop(inner, None)
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
