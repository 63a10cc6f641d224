"""Defines what it means that a value has its batch on an axis.

Look at a value in row-major order, and let P be the product of the sizes of the axes before axis
`a`. The value has its batch on axis `a` if it consists of P blocks, and each block has one run of
elements for each row, in the order of the rows. Further axes may be merged into axis `a`, after the
row. An operator keeps rows apart if each run of its result depends only on the same row of its
inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from headrace.runtime.network.constants import tensor_of

Shape: TypeAlias = "tuple[int, ...] | None"


class Mixes(Exception):
    """The operator makes a row's result depend on another row, or its result has no rows."""


class Doubt(Exception):
    """The rules cannot tell."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with what is known about its values.

    Attributes:
        opset: the version of ONNX's own operators.
        axes: the axis of the batch for each input. None: the input has no batch.
        inputs, outputs: the shapes for one size of the batch. None: inference failed.
    """

    node: ir.Node
    opset: int
    axes: tuple[int | None, ...]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]

    @property
    def axis(self) -> int:
        """The axis of the batch in the first input."""
        if not self.axes or self.axes[0] is None:
            raise Doubt("the batch is in another input than the first")
        return self.axes[0]

    def shape(self, at: int = 0) -> tuple[int, ...]:
        found = self.inputs[at]
        if found is None:
            raise Doubt("the shape of an input is not known")
        return found

    def result(self, at: int = 0) -> tuple[int, ...]:
        found = self.outputs[at]
        if found is None:
            raise Doubt("the shape of its result is not known")
        return found

    def integer(self, name: str, default: int) -> int:
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_int()

    def constant(self, at: int, name: str = "") -> list[int] | None:
        """The integers of a constant input, or of an attribute in older opsets."""
        if name and (attribute := self.node.attributes.get(name)) is not None:
            return list(attribute.as_ints())
        value = self.node.inputs[at] if at < len(self.node.inputs) else None
        if value is None:
            return None
        tensor = constant_of(value)
        if tensor is None:
            raise Doubt("an argument of it is computed")
        return [int(x) for x in np.ravel(tensor.numpy())]

    def only_first(self) -> None:
        if any(axis is not None for axis in self.axes[1:]):
            raise Doubt("the batch is in another input than the first")


def constant_of(value: ir.Value) -> ir.TensorProtocol | None:
    """The value's tensor if the value is constant, otherwise None."""
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    if node is not None and node.op_type == "Constant" and node.domain == "":
        attribute = node.attributes.get("value")
        if attribute is not None:
            return tensor_of(attribute)
        attribute = node.attributes.get("value_ints")
        if attribute is not None:
            return ir.tensor(np.array(attribute.as_ints(), np.int64))
    return None


def moved(before: Sequence[int], axis: int, after: Sequence[int]) -> int:
    """The axis of the batch after a reshape that keeps the order of the elements.

    Raises:
        Mixes: the batch is not the major part of any axis.
    """
    blocks, product = math.prod(before[:axis]), 1
    for where, size in enumerate(after):
        if product == blocks:
            return where
        product *= size
    raise Mixes("its result has the batch on no axis of its own")


Rule: TypeAlias = Callable[[Layer], Sequence[int]]
"""Returns the axis of the batch in each result of an operator. Raises `Mixes` or `Doubt`."""


def apart(layer: Layer, axes: Sequence[int], what: str) -> None:
    """Refuses an operation over several axes if one of them is the batch's."""
    rank = len(layer.shape())
    if layer.axis in [axis % rank if rank else 0 for axis in axes]:
        raise Mixes(f"{what} over the batch")
