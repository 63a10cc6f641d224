"""What it means that a value has its batch on an axis.

A value has its batch on an axis `a` if, seen in row-major order, it is P blocks (P: the product of
the axes before `a`), each with one run of elements after the other for each row; axis `a` may hold
further axes merged into it, which come after the row. An operator keeps rows apart if each run of
its result depends on the same row of what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

Shape: TypeAlias = "tuple[int, ...] | None"


class Mixes(Exception):
    """The operator makes one row's result depend on another's, or loses which is whose."""


class Doubt(Exception):
    """The rules cannot tell."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with what is known of its values.

    Attributes:
        opset: version of ONNX's own operators.
        axes: of each input: where its batch is; None: it has none.
        inputs, outputs: shapes with a known size of the batch; None where inference failed.
    """

    node: ir.Node
    opset: int
    axes: tuple[int | None, ...]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]

    @property
    def axis(self) -> int:
        """Where the batch of the first input is."""
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
        """Integers that are given as a constant input, or as an attribute in older opsets."""
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
    """The tensor that a value always is, if its definition says so."""
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    if node is not None and node.op_type == "Constant" and node.domain == "":
        attribute = node.attributes.get("value")
        if attribute is not None:
            return attribute.as_tensor()
        attribute = node.attributes.get("value_ints")
        if attribute is not None:
            return ir.tensor(np.array(attribute.as_ints(), np.int64))
    return None


def moved(before: Sequence[int], axis: int, after: Sequence[int]) -> int:
    """Where the batch is after elements in the same order have got another shape.

    Raises:
        Mixes: it is not the major part of any axis.
    """
    blocks, product = math.prod(before[:axis]), 1
    for where, size in enumerate(after):
        if product == blocks:
            return where
        product *= size
    raise Mixes("its result has the batch on no axis of its own")


Rule: TypeAlias = Callable[[Layer], Sequence[int]]
"""Where an operator takes the batch of each result; raises `Mixes` or `Doubt`."""


def apart(layer: Layer, axes: Sequence[int], what: str) -> None:
    """Refuses an operation over several axes if one of them is the batch's."""
    rank = len(layer.shape())
    if layer.axis in [axis % rank if rank else 0 for axis in axes]:
        raise Mixes(f"{what} over the batch")
