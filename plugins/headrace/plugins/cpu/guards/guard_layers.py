"""Layers that fail in place of another one, for values that ONNX Runtime does not survive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.backend.guard_reasons import FAILS, SUFFIX, reason
from headrace.plugins.cpu.backend.inserter import LayerInserter, constant, opset_of
from headrace.runtime.intake.naming import value_names
from headrace.runtime.intake.provenance import origins, stamp
from headrace.runtime.network.ranks import MAX_RANK, TOO_DEEP
from headrace.runtime.network.shapes.formulas import Unsure
from headrace.runtime.network.shapes.ledger import AT_LEAST, AT_MOST, EQUAL, Holds, Requirement
from headrace.runtime.network.shapes.sizes import Sizes

_NEVER: Final = re.compile(rf"{re.escape(SUFFIX)}\.never(?:\.(\d+)\.(\d+)(\+)?)?(\.deep)?")
END: Final = 2**31 - 1  # of an axis; a slice stops where the axis ends
_LOOP_TAKES_SEQUENCES: Final = 13
_SLICE_TAKES_INPUTS: Final = 10


def certain(node: ir.Node) -> str | None:
    """Why the node fails in every run; None if it may not."""
    match = _NEVER.search(node.name or "")
    if match is None:
        return None
    rank, wanted, more, deep = match.groups()
    if rank is None:
        return TOO_DEEP if deep else FAILS
    return f"the input has {rank} axes; it must have {'at least ' if more else ''}{wanted}"


class GuardContext:
    """A network whose layers get guards.

    Attributes:
        sizes: those of its values. A guard changes none.
        requirements: what must hold of the shapes of a request. Layers check what does not follow
            from these.
    """

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.names = value_names(model)
        self.opset = opset_of(model)
        self.sizes = Sizes(model)
        self.requirements: dict[Requirement, None] = {}


class Guard(LayerInserter):
    """Guards a node's inputs, or values at the end of its `body`. Where sizes follow from a
    request's shapes, it requires something of them. Otherwise it puts layers before the node that
    fail in its place. A method that guards a value returns the guarded value."""

    def __init__(self, node: ir.Node, network: GuardContext, body: ir.Graph | None = None) -> None:
        super().__init__(node, network.names, SUFFIX, network.opset)
        self.network = network
        self.sizes = network.sizes
        self._body = body
        self._stands_for: tuple[str, ...] = ()

    def within(self, body: ir.Graph) -> Guard:
        return Guard(self.node, self.network, body)

    def judged(self, kind: str, *conditions: tuple[Holds, Unsure, Unsure]) -> bool:
        """Requires that all conditions hold of a request's shapes. Returns False, and requires
        nothing, if one does not follow from them, or if the layer need not run in each request."""
        found = []
        for holds, one, other in conditions:
            if one is None or other is None:
                return False
            if not (isinstance(one, int) and isinstance(other, int) and holds(one, other)):
                layer = self.node.name or ""
                found.append(Requirement(layer, reason(kind), holds, one, other))
        if found and self.node.graph is not self.network.graph:
            return False
        self.network.requirements.update(dict.fromkeys(found))
        return True

    def layer(self, op_type: str, *inputs: ir.Value, **given: Any) -> ir.Value:
        if op_type == "Shape":
            self._forget_declared(inputs[0])
        return super().layer(op_type, *inputs, **given)

    def _forget_declared(self, value: ir.Value) -> None:
        """Drops sizes that are only declared. The backend would believe them, and not look."""
        if value.shape is None or value.producer() is None:
            return
        sizes = self.sizes.of(value) or (None,) * value.shape.rank()
        value.shape = ir.Shape(size if isinstance(size, int) else None for size in sizes)

    def not_empty(self, value: ir.Value, free: int | None = None) -> ir.Value:
        """Guards that no axis of the value is empty, except the axis `free`."""
        sizes = self.sizes.of(value)
        axis = free
        if sizes is not None:
            rank = len(sizes)
            if free is not None and not -rank <= free < rank:
                return self._never(value, rank, free + 1 if free >= 0 else -free, or_more=True)
            certain = (at for at, size in enumerate(sizes) if isinstance(size, int) and size)
            axis = next(certain, None) if free is None else free % rank
            others = [size for at, size in enumerate(sizes) if at != axis]
            if 0 in others:
                return self._never(value, rank)
            if self.judged("", *((AT_LEAST, size, 1) for size in others)):
                return value
            if axis is not None:
                wanted = [0] * rank  # 0 leaves a size as it is
                wanted[axis] = -1  # the backend infers it, unless another size is 0
                return self._reshaped(value, self.constant(np.array(wanted)))
        shape = self.layer("Shape", value)
        if axis is None:
            nothing = self.layer("Div", self.constant(np.array([0])), shape)  # fails for a 0
            return self._reshaped(value, self.layer("Add", shape, nothing))
        return self._reshaped(value, self._with(shape, axis, -1))

    def long(self, value: ir.Value, axis: int) -> ir.Value:
        """Guards that the axis of the value is not empty."""
        sizes = self.sizes.of(value) or ()
        if -len(sizes) <= axis < len(sizes) and self.judged("", (AT_LEAST, sizes[axis], 1)):
            return value
        shape = self.layer("Shape", value)
        size = self.layer("Gather", shape, self.constant(np.array(axis)))
        nothing = self.zeros(self.is_zero(size))
        return self._reshaped(value, self.layer("Add", shape, nothing))

    def alike_in(self, sequence: ir.Value, axis: int | None) -> ir.Value:
        """Guards that the tensors of the sequence are `alike`. A loop checks each of them."""
        kind = sequence.type
        assert isinstance(kind, ir.SequenceType)
        if self.opset < _LOOP_TAKES_SEQUENCES:  # the backend refuses the Loop, and so the layer
            self._stands_for = origins(self.node)
        number, truth = (ir.TensorType(dtype) for dtype in (ir.DataType.INT64, ir.DataType.BOOL))
        given = [
            ir.Value(name=self.names.fresh(f"{self.node.name}{SUFFIX}"), type=each)
            for each in (number, truth, kind)
        ]
        for value in given[:2]:
            value.shape = ir.Shape([])
        body = ir.Graph(given, [], nodes=[], name=self.names.fresh(f"{self.node.name}{SUFFIX}"))
        inside = self.within(body)
        tensors = [
            inside.layer("SequenceAt", sequence, at, type=kind.elem_type)
            for at in (inside.constant(np.array(0)), given[0])
        ]
        checked = inside.alike(tensors, axis)[1]
        body.outputs.append(inside.layer("Identity", given[1]))
        body.outputs.append(inside.layer("SequenceInsert", given[2], checked))
        length = self.layer("SequenceLength", sequence, type=number)
        always = self.constant(np.array(True))
        none = self.layer("SequenceEmpty", type=kind, dtype=kind.dtype.value)
        return self.layer("Loop", length, always, none, type=kind, body=body)

    def few(self, value: ir.Value, axis: int, most: int) -> ir.Value:
        """Guards that the axis of the value has at most `most` elements."""
        sizes = self.sizes.of(value)
        if sizes and self.judged("many", (AT_MOST, sizes[axis], most)):
            return value
        self.suffix = f"{SUFFIX}.many"
        shape = self.layer("Shape", value)
        given = self.layer("Gather", shape, self.constant(np.array(axis)))
        beyond = self.layer("Div", given, self.constant(np.array(most + 1)))
        return self._reshaped(value, self.layer("Add", shape, self.zeros(beyond)))

    def is_zero(self, value: ir.Value) -> ir.Value:
        """Returns 1 for each 0, and 0 for every other number."""
        truth = ir.TensorType(ir.DataType.BOOL)
        equal = self.layer("Equal", value, self.constant(np.array(0)), type=truth)
        return self.cast(equal, ir.DataType.INT64)

    def zeros(self, value: ir.Value) -> ir.Value:
        """Guards that the value is 0. Even a constant that is not 0 fails only in a run. A division
        by such a constant would fail while the backend loads the network."""
        twice = self.layer("Add", value, value)  # -1 would mean the last element
        return self.layer("Gather", self.constant(np.array([0])), twice)

    def of_rank(self, value: ir.Value, least: int) -> ir.Value:
        """Guards that the value has at least `least` axes."""
        sizes = self.sizes.of(value)
        if sizes is not None:
            return (
                value
                if len(sizes) >= least
                else self._never(value, len(sizes), least, or_more=True)
            )
        shape = self.layer("Shape", value)
        first = self.layer("Gather", shape, self.constant(np.arange(least)))
        wanted = self.layer("Concat", first, self.slice(shape, least, END), axis=0)
        return self._reshaped(value, wanted)

    def ranked(self, value: ir.Value, rank: int) -> ir.Value:
        """Guards that the value has `rank` axes."""
        sizes = self.sizes.of(value)
        if sizes is not None:
            return value if len(sizes) == rank else self._never(value, len(sizes), rank)
        # A Reshape to zeros alone accepts an empty tensor of more axes, and drops these.
        shape = self.layer("Reshape", self.layer("Shape", value), self.constant(np.array([rank])))
        return self._reshaped(value, shape)

    def only_if(self, value: ir.Value, truth: ir.Value, kind: str) -> ir.Value:
        """Guards that all elements of `truth` are true. `kind` says what it means if one is not."""
        self.suffix = f"{SUFFIX}.{kind}"
        false = self.cast(self.layer("Not", truth), ir.DataType.INT64)
        count = self.layer("ReduceSum", false, keepdims=0)
        nothing = self.zeros(count)
        return self._reshaped(value, self.layer("Add", self.layer("Shape", value), nothing))

    def alike(self, values: Sequence[ir.Value], axis: int | None) -> list[ir.Value]:
        """Guards that the values' shapes differ along `axis` alone, or not at all if it is None."""
        shapes = [self.sizes.of(value) for value in values]
        ranks = {None if shape is None else len(shape) for shape in shapes}
        rank = ranks.pop() if len(ranks) == 1 else None
        if rank is not None and (axis is None or -rank <= axis < rank):
            others = [
                [size for at, size in enumerate(shape or ()) if axis is None or at != axis % rank]
                for shape in shapes
            ]
            pairs = [pair for each in others[1:] for pair in zip(others[0], each, strict=True)]
            unlike = [(EQUAL, one, other) for one, other in pairs if one is None or one != other]
            if self.judged("shape", *unlike):
                return [*values]
        self.suffix = f"{SUFFIX}.shape"
        first = self.layer("Shape", values[0])
        if axis is not None and rank is not None and -rank <= axis < rank:
            weights = self.constant(np.array([2 * (at != axis % rank) for at in range(rank)]))
        else:
            zeros = self.layer("Mul", first, self.constant(np.array([0])))
            weights = self.layer("Add", zeros, self.constant(np.array([2])))
            if axis is not None:
                weights = self._with(weights, axis, 0)
        found = [values[0]]
        for value in values[1:]:
            shape = self.layer("Shape", value)
            given = shape
            if rank is None:
                given = self.layer("Reshape", shape, self.layer("Shape", first))
            apart = self.layer("Mul", self.layer("Sub", given, first), weights)
            none = self.layer("Gather", self.constant(np.array([0])), apart)  # fails unless all 0
            found.append(self._reshaped(value, self.layer("Add", shape, none)))
        return found

    def not_zero(self, value: ir.Value) -> ir.Value:
        """Guards that none of the integers is 0."""
        tensor = constant(value)
        if value.dtype is None or (tensor is not None and tensor.numpy().all()):
            return value
        zero = self.constant(np.zeros((), value.dtype.numpy()))
        return self.layer("Add", value, self.layer("Div", zero, value))

    def at_least(self, value: ir.Value, least: int) -> ir.Value:
        """Guards that no integer is smaller than `least`."""
        tensor = constant(value)
        if value.dtype is None or (tensor is not None and (tensor.numpy() >= least).all()):
            return value
        self.suffix = f"{SUFFIX}.negative"
        limit = self.constant(np.array(least, value.dtype.numpy()))
        small = self.layer("Less", value, limit, type=ir.TensorType(ir.DataType.BOOL))
        nothing = self.zeros(self.cast(small, ir.DataType.INT64))
        return self.layer("Add", value, self.cast(nothing, value.dtype))

    def deep(self, value: ir.Value) -> ir.Value:
        """Has the guarded layer refused, because its output has more axes than any tensor has."""
        return self._never(value, MAX_RANK, kind=".deep")

    def place(self, node: ir.Node) -> None:
        stamp(node, self._stands_for)
        if self._body is not None:
            self._body.append(node)
        else:
            super().place(node)

    def slice(self, shape: ir.Value, start: int, end: int) -> ir.Value:
        if self.opset < _SLICE_TAKES_INPUTS:
            return self.layer("Slice", shape, starts=[start], ends=[end])
        bounds = (self.constant(np.array([limit])) for limit in (start, end))
        return self.layer("Slice", shape, *bounds)

    def _with(self, sizes: ir.Value, axis: int, size: int) -> ir.Value:
        """The sizes, with `size` in the place of the axis."""
        before = self.slice(sizes, 0, axis)
        after = self.slice(sizes, axis + 1 if axis != -1 else END, END)
        return self.layer("Concat", before, self.constant(np.array([size])), after, axis=0)

    def _never(
        self,
        value: ir.Value,
        rank: int,
        wanted: int | None = None,
        or_more: bool = False,
        kind: str = "",
    ) -> ir.Value:
        """A layer that fails in every run, so that the guarded layer is refused.

        Args:
            wanted: the rank that the value must have, if it has another one. The backend does not
                always look at the rank of a constant while it loads a network.
            kind: what `certain` tells by, if it is not the rank.
        """
        self._stands_for = origins(self.node)
        self.suffix = f"{SUFFIX}.never{kind}"
        if wanted is not None:
            self.suffix += f".{rank}.{wanted}{'+' if or_more else ''}"
        sizes = self.constant(np.zeros(rank + 1, np.int64))  # a 0 stands for the size of an axis
        return self._reshaped(value, sizes)

    def _reshaped(self, value: ir.Value, sizes: ir.Value) -> ir.Value:
        made = self.layer("Reshape", value, sizes, type=value.type, shape=value.shape)
        self.sizes.copy(value, made)
        return made
