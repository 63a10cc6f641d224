"""Shapes that a network proves. A shape that it only declares may be wrong, by mistake or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TypeAlias

import onnx_ir as ir

from headrace.runtime.intake.naming import bodies, walk
from headrace.runtime.network.constants import const_tensor
from headrace.runtime.network.type_inference import infer_types

_Sizes: TypeAlias = list[int | None]


class ProvenShapes:
    """The shapes that are certain: those of constants, those of the network's inputs, which are
    checked before a run, and those that follow from these.

    Args:
        model: nobody else may read it while this finds out about it for the first time, because
            its declared shapes are put aside meanwhile.
        are_inferred: the shape of every value but the inputs and outputs was inferred already.
    """

    def __init__(self, model: ir.Model, *, are_inferred: bool = False) -> None:
        self._model = model
        self._are_inferred = are_inferred

    def dimensions(self, value: ir.Value) -> list[int | str | None] | None:
        """Like `sizes`, but with symbols for some unknown sizes. A symbol stands here only if
        exactly one dimension of one input has it. So two dimensions with one symbol are equal."""
        shape = self._shapes.get(value)
        if shape is None or constant(value) is not None:
            sizes = self.sizes(value)
            return None if sizes is None else [*sizes]
        return [
            each
            if isinstance(each, int)
            else (str(each.value) if str(each.value) in self._symbols else None)
            for each in shape
        ]

    def sizes(self, value: ir.Value) -> _Sizes | None:
        """The size of each axis, or None for an axis of unknown size. None for a value whose rank
        is not certain."""
        tensor = constant(value)
        if tensor is not None:
            return [int(size) for size in tensor.shape.numpy()]
        return self._inferred.get(value)

    @cached_property
    def _inferred(self) -> Mapping[ir.Value, _Sizes]:
        return {
            value: [size if isinstance(size, int) else None for size in shape]
            for value, shape in self._shapes.items()
        }

    def outputs(self) -> frozenset[str]:
        """The network's outputs that have the shape that it declares, in every run."""
        return frozenset(
            value.name
            for value in self._model.graph.outputs
            if value.name and value.shape is not None and self.sizes(value) == [*value.shape]
        )

    @property
    def deep(self) -> frozenset[ir.Value]:
        """Values that are known to have more axes than any tensor has."""
        return self._found[1]

    @property
    def _shapes(self) -> Mapping[ir.Value, ir.Shape]:
        return self._found[0]

    @cached_property
    def _found(self) -> tuple[Mapping[ir.Value, ir.Shape], frozenset[ir.Value]]:
        made = [value for node in walk(self._model.graph) for value in _made(node)]
        ends = (value for value in self._model.graph.outputs if value.producer() is not None)
        declared = [*ends] if self._are_inferred else made
        told = [(value, value.type, value.shape) for value in made]
        try:
            for value in declared:
                value.shape = None
            deep = infer_types(self._model)
            values = [*self._model.graph.inputs, *made]
            shapes = {value: value.shape for value in values if value.shape is not None}
            return shapes, frozenset(value for value in values if value in deep)
        finally:
            for value, kind, shape in told:
                value.type, value.shape = kind, shape

    @cached_property
    def _symbols(self) -> frozenset[str]:
        shapes = [value.shape for value in self._model.graph.inputs if value.shape is not None]
        symbols = Counter(
            str(each.value) for shape in shapes for each in shape if not isinstance(each, int)
        )
        return frozenset(name for name, count in symbols.items() if count == 1) - {"None"}


def constant(value: ir.Value) -> ir.TensorProtocol | None:
    """The value's tensor if no run can change it, or None."""
    return None if value.is_graph_input() else const_tensor(value)


def _made(node: ir.Node) -> Iterator[ir.Value]:
    """The node's outputs, and the inputs of its bodies."""
    yield from node.outputs
    for _, body in bodies(node):
        yield from body.inputs
