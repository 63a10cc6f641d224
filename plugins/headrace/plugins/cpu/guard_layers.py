"""Layers that fail in place of another one, for values that ONNX Runtime does not survive."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.proven_shapes import ProvenShapes, constant
from headrace.runtime.intake.naming import Names
from headrace.runtime.intake.provenance import origins, stamp

SUFFIX: Final = "/headrace.guard"  # of the names of layers that fail in place of another one
FAILS: Final = "a tensor is empty, has too few axes, or is 0 where a length is due"
_END: Final = 2**31 - 1  # of an axis; a slice is cut to what there is
_SLICE_TAKES_INPUTS: Final = 10


class Guard:
    """Puts layers before the node, or at the end of its `body`, which fail in its place."""

    def __init__(
        self,
        node: ir.Node,
        names: Names,
        proven: ProvenShapes,
        opset: int,
        body: ir.Graph | None = None,
    ) -> None:
        self._node = node
        self._names = names
        self.proven = proven
        self._opset = opset
        self._body = body
        self._stands_for: tuple[str, ...] = ()

    def within(self, body: ir.Graph) -> Guard:
        return Guard(self._node, self._names, self.proven, self._opset, body)

    def not_empty(self, value: ir.Value, free: int | None = None) -> ir.Value:
        """The value, of which no axis is empty, but for the axis `free`."""
        sizes = self.proven.sizes(value)
        axis = free
        if sizes is not None:
            rank = len(sizes)
            if free is not None and not -rank <= free < rank:
                return value  # the backend refuses it
            certain = (at for at, size in enumerate(sizes) if size)
            axis = next(certain, None) if free is None else free % rank
            others = [size for at, size in enumerate(sizes) if at != axis]
            if all(others):
                return value
            if 0 in others:  # it always fails, and so does the layer
                self._stands_for = origins(self._node)
            if axis is not None:
                wanted = [0] * rank  # which leaves them as they are
                wanted[axis] = -1  # found from the others, unless one of them is 0
                return self._reshaped(value, self.constant(np.array(wanted)))
        shape = self.layer("Shape", value)
        if axis is None:
            nothing = self.layer("Div", self.constant(np.array([0])), shape)  # fails for a 0
            return self._reshaped(value, self.layer("Add", shape, nothing))
        before = self._slice(shape, 0, axis)
        after = self._slice(shape, axis + 1 if axis != -1 else _END, _END)
        wanted_shape = self.layer("Concat", before, self.constant(np.array([-1])), after, axis=0)
        return self._reshaped(value, wanted_shape)

    def of_rank(self, value: ir.Value, least: int) -> ir.Value:
        """The value, which has at least so many axes."""
        if self.proven.sizes(value) is not None:
            return value
        shape = self.layer("Shape", value)
        first = self.layer("Gather", shape, self.constant(np.arange(least)))
        wanted = self.layer("Concat", first, self._slice(shape, least, _END), axis=0)
        return self._reshaped(value, wanted)

    def ranked(self, value: ir.Value, rank: int) -> ir.Value:
        """The value, which has so many axes."""
        if self.proven.sizes(value) is not None:
            return value
        return self._reshaped(value, self.constant(np.zeros(rank, np.int64)))

    def not_zero(self, value: ir.Value) -> ir.Value:
        """The integers, of which none is 0."""
        tensor = constant(value)
        if value.dtype is None or (tensor is not None and tensor.numpy().all()):
            return value
        zero = self.constant(np.zeros((), value.dtype.numpy()))
        return self.layer("Add", value, self.layer("Div", zero, value))

    def constant(self, array: Any) -> ir.Value:
        tensor = ir.tensor(array)
        return self.layer("Constant", value=tensor, type=ir.TensorType(tensor.dtype))

    def layer(
        self,
        op_type: str,
        *inputs: ir.Value,
        type: ir.TypeProtocol | None = None,
        shape: ir.Shape | None = None,
        **attributes: Any,
    ) -> ir.Value:
        name = self._names.fresh(f"{self._node.name}{SUFFIX}")
        if op_type == "Shape":
            type = ir.TensorType(ir.DataType.INT64)
        output = ir.Value(name=name, type=type or inputs[0].type, shape=shape)
        node = ir.node(op_type, inputs, attributes, outputs=[output], name=name)
        stamp(node, self._stands_for)
        if self._body is not None:
            self._body.append(node)
        else:
            assert self._node.graph is not None
            self._node.graph.insert_before(self._node, node)
        return output

    def _slice(self, shape: ir.Value, start: int, end: int) -> ir.Value:
        if self._opset < _SLICE_TAKES_INPUTS:
            return self.layer("Slice", shape, starts=[start], ends=[end])
        bounds = (self.constant(np.array([each])) for each in (start, end))
        return self.layer("Slice", shape, *bounds)

    def _reshaped(self, value: ir.Value, sizes: ir.Value) -> ir.Value:
        return self.layer("Reshape", value, sizes, type=value.type, shape=value.shape)
