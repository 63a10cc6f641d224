"""Finds out from a network's graph whether the network computes each row of its batch by itself.

It infers shapes for two sizes of the batch. Then it follows the batch through the graph by the
rules of `rules`. An operator that the rules do not cover is a doubt, which a trial has to settle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from headrace.plugins.batch.analysis import sizes
from headrace.plugins.batch.analysis.axes import Doubt, Layer, Mixes, Shape
from headrace.plugins.batch.analysis.rules import RULES
from headrace.runtime.intake import naming
from headrace.runtime.network.values import Array

ROWS: Final = (11, 13)
"""Sizes of the batch to infer shapes for. They are primes, so that they stand out."""

_Sizes: TypeAlias = tuple[Array, ...]
"""A value that depends on the number of rows and not on their contents, once for each of `ROWS`."""


class _Unsure:
    """A value that no rule describes."""


_UNSURE: Final = _Unsure()
_Mark: TypeAlias = "int | _Sizes | _Unsure | None"
"""What is known about a value: the axis of its batch, or its sizes, or that no rule describes it.
None: the value does not depend on the batch."""

_SIZED: Final = {"Reshape": 1, "Expand": 1, "Slice": 1, "Tile": 1, "Pad": 1, "Resize": 1}
"""Operators that take sizes, and the position of the first input with sizes."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a network's graph shows.

    Attributes:
        mixes: why rows of a batch cannot run together. Empty if no reason was found.
        mixing: the name of the layer that mixes rows, if a layer does.
        doubts: the layers that no rule describes, name to reason.
        outputs: the outputs that are known, name to the axis of the batch. None: the output has no
            batch.
        axes: the same for all values.
        shapes: the values' shapes for the first size of the batch.
    """

    mixes: str = ""
    mixing: str = ""
    doubts: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, int | None] = field(default_factory=dict)
    axes: Mapping[str, int | None] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)


def analyse(model: ir.Model, rows: Sequence[int] = ROWS) -> Analysis:
    """
    Args:
        model: every input has the batch as its first dimension.
        rows: the sizes of the batch to look at.
    """
    shapes = [sizes.shapes(model, size) for size in rows]
    walk = _Walk(model, shapes)
    mixes = walk.run()
    marks = {
        value.name or "": walk.marks.get(value)
        for value in (*model.graph.outputs, *walk.marks)
        if not isinstance(walk.marks.get(value), _Unsure)
    }
    axes = {name: mark if isinstance(mark, int) else None for name, mark in marks.items()}
    outputs = {
        value.name or "": axes[value.name or ""]
        for value in model.graph.outputs
        if value.name in axes
    }
    if not mixes:
        mixes = _outputs_apart(outputs)
    return Analysis(mixes, walk.mixing, walk.doubts, outputs, axes, shapes[0])


def _outputs_apart(outputs: Mapping[str, int | None]) -> str:
    for name, axis in outputs.items():
        if axis:
            return f"output {name!r} has the batch on axis {axis} and not first"
    if outputs and all(axis is None for axis in outputs.values()):
        return "no output depends on the batch"
    return ""


class _Walk:
    """Follows the batch through one graph."""

    def __init__(self, model: ir.Model, shapes: Sequence[Mapping[str, Shape]]) -> None:
        self._graph = model.graph
        self._opset = model.opset_imports.get("", 0)
        self._shapes = shapes
        self.marks: dict[ir.Value, _Mark] = {
            value: 0 for value in model.graph.inputs if value.name not in model.graph.initializers
        }
        self._known: dict[ir.Value, _Sizes] = {}
        self.doubts: dict[str, str] = {}
        self.mixing = ""

    def run(self) -> str:
        """The reason why the network mixes rows. Empty if none was found."""
        for node in self._graph:
            try:
                found = self._node(node)
            except Mixes as why:
                self.mixing = node.name or ""
                return f"layer {node.name!r} ({node.op_type}): {why}"
            except Doubt as why:
                self.doubts[node.name or ""] = f"{node.name!r} ({node.op_type}): {why}"
                found = [_UNSURE] * len(node.outputs)
            self.marks.update(zip(node.outputs, found, strict=False))
        return ""

    def _node(self, node: ir.Node) -> list[_Mark]:
        count = len(node.outputs)
        marks = [None if value is None else self.marks.get(value) for value in node.inputs]
        bodies = [body for _, body in naming.bodies(node)]
        for inner in (each for body in bodies for each in naming.walk(body)):
            marks += [self.marks[value] for value in inner.inputs if value in self.marks]
        if any(isinstance(mark, _Unsure) for mark in marks):
            return [_UNSURE] * count
        if all(mark is None for mark in marks):
            self._note(node, marks)
            return [None] * count
        if bodies:
            raise Doubt("it has bodies, which may do different things for different rows")
        if node.op_type in ("Shape", "Size") and node.domain == "":
            return self._sizes(node, [sizes.shape_of(node, x) for x in self._each_shape(node)])
        if not any(isinstance(mark, int) for mark in marks):
            return self._of_sizes(node, marks)
        return list(self._rows(node, marks))

    # -- values that do not depend on what is in the rows --

    def _note(self, node: ir.Node, marks: Sequence[_Mark]) -> None:
        """Remembers the value of a small constant expression."""
        values = self._computed(node, marks)
        if values is not None:
            self._known[node.outputs[0]] = tuple(values)

    def _of_sizes(self, node: ir.Node, marks: Sequence[_Mark]) -> list[_Mark]:
        values = self._computed(node, marks)
        if values is not None:
            return self._sizes(node, values)
        shapes = [self._shape(each, node.outputs[0]) for each in range(len(self._shapes))]
        if None in shapes or node.op_type not in ("ConstantOfShape", "Expand", "Tile"):
            raise Doubt("it computes with the number of rows")
        if len(set(shapes)) == 1:
            return [None]
        first, second = (shape or () for shape in shapes[:2])
        where = next(at for at, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
        if node.op_type != "ConstantOfShape":
            given = self._shape(0, node.inputs[0]) or ()
            at = where - (len(first) - len(given))
            if at >= 0 and given[at] != 1:
                raise Mixes("it repeats a constant of several rows as often as there are rows")
        return [where]

    def _computed(self, node: ir.Node, marks: Sequence[_Mark]) -> list[Array] | None:
        found = []
        for each in range(len(self._shapes)):
            inputs: list[Array] = []
            for value, mark in zip(node.inputs, marks, strict=False):
                known = self._value(value, mark, each)
                if known is None:
                    return None
                inputs.append(known)
            result = sizes.compute(node, inputs) if inputs else None
            if result is None:
                return None
            found.append(result)
        return found

    def _value(self, value: ir.Value | None, mark: _Mark, each: int) -> Array | None:
        if isinstance(mark, tuple):
            return mark[each]
        if value is not None and value in self._known:
            return self._known[value][each]
        return sizes.known(value)

    def _sizes(self, node: ir.Node, values: Sequence[Array]) -> list[_Mark]:
        """The mark of a value: None if the value is the same for any number of rows."""
        if len(values) > 1 and all(np.array_equal(values[0], other) for other in values[1:]):
            self._known[node.outputs[0]] = tuple(values)
            return [None]
        return [tuple(values)]

    # -- values of rows --

    def _rows(self, node: ir.Node, marks: Sequence[_Mark]) -> Sequence[int]:
        rule = RULES.get(node.op_type) if node.domain == "" else None
        if rule is None:
            raise Doubt("no rule says what it does to the batch")
        first_size = _SIZED.get(node.op_type, len(marks))
        for at, mark in enumerate(marks):
            if isinstance(mark, tuple) and at < first_size:
                raise Doubt("it computes with the number of rows")
        axes = tuple(mark if isinstance(mark, int) else None for mark in marks)
        found = {
            tuple(
                rule(
                    Layer(
                        node,
                        self._opset,
                        axes,
                        tuple(self._shape(each, value) for value in node.inputs),
                        tuple(self._shape(each, value) for value in node.outputs),
                    )
                )
            )
            for each in range(len(self._shapes))
        }
        if len(found) > 1:
            raise Mixes("where the batch is depends on the number of rows")
        (where,) = found
        for value, axis in zip(node.outputs, where, strict=False):
            self._check_size(value, axis)
        return where

    def _check_size(self, value: ir.Value, axis: int) -> None:
        """Checks the rule's axis against the inferred shape. Its size must be a multiple of the
        number of rows."""
        for each in range(len(self._shapes)):
            shape = self._shape(each, value)
            rows = self._shapes[each][""]
            assert rows is not None
            if shape is not None and (axis >= len(shape) or shape[axis] % rows[0]):
                raise Mixes("its result has no batch dimension")

    def _each_shape(self, node: ir.Node) -> list[tuple[int, ...]]:
        found = [self._shape(each, node.inputs[0]) for each in range(len(self._shapes))]
        known = [shape for shape in found if shape is not None]
        if len(known) < len(found):
            raise Doubt("the shape of its input is not known")
        return known

    def _shape(self, each: int, value: ir.Value | None) -> Shape:
        if value is None:
            return ()
        tensor = value.const_value
        if tensor is not None:
            return tuple(tensor.shape.numpy())
        return self._shapes[each].get(value.name or "")
