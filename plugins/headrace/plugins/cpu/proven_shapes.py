"""Shapes that a network proves. What it only declares may be wrong, by mistake or on purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import TypeAlias

import onnx_ir as ir

from headrace.runtime.naming import bodies, walk
from headrace.runtime.type_inference import infer_types

_Sizes: TypeAlias = list[int | None]


class ProvenShapes:
    """What is certain of shapes: those of constants and of the network's inputs, which are checked
    before a run, and what follows from them."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    def sizes(self, value: ir.Value) -> _Sizes | None:
        """A size, or None, for each axis; None for a value of no certain rank."""
        tensor = constant(value)
        if tensor is not None:
            return [int(size) for size in tensor.shape.numpy()]
        return self._inferred.get(value.name or "")

    @cached_property
    def _inferred(self) -> Mapping[str, _Sizes]:
        model = self._model.clone()
        known = list(model.graph.inputs)
        for node in walk(model.graph):
            inner = [value for _, body in bodies(node) for value in body.inputs]
            for value in (*node.outputs, *inner):
                value.shape = None
                known.append(value)
        infer_types(model)
        made = Counter(value.name for value in known)
        return {
            value.name: [size if isinstance(size, int) else None for size in value.shape]
            for value in known
            if value.name and value.shape is not None and made[value.name] == 1  # not of two bodies
        }


def constant(value: ir.Value) -> ir.TensorProtocol | None:
    """The value if no run can change it."""
    return None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
