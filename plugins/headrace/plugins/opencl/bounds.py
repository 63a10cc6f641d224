"""Indices that lead outside of what they index. ONNX calls them an error; a kernel reads past them.

Those that arrive as inputs of the network are looked at before it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from headrace.runtime.errors import InvalidArgument

_INDEXED = {"Gather": 0, "GatherElements": 0, "ScatterElements": 0}
"""Operator to the default of its axis; indices are the second input of each."""


class _Bound(NamedTuple):
    layer: str
    size: int


class IndexBounds:
    """The sizes that a model's index inputs have to stay within. Immutable."""

    def __init__(self, model: ir.Model) -> None:
        self._bounds: dict[str, list[_Bound]] = {}
        inputs = set(model.graph.inputs)
        for node in model.graph:
            default = _INDEXED.get(node.op_type)
            if default is None or node.domain or node.inputs[1] not in inputs:
                continue
            axis = node.attributes.get_int("axis", default)
            shape = node.inputs[0].shape if node.inputs[0] is not None else None
            size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
            if isinstance(size, int):
                name = node.inputs[1].name or ""
                self._bounds.setdefault(name, []).append(_Bound(node.name or "", size))

    def check(self, inputs: Mapping[str, Any]) -> None:
        """
        Raises:
            InvalidArgument: naming the input and the layer.
        """
        for name, bounds in self._bounds.items():
            indices = inputs.get(name)
            if not isinstance(indices, np.ndarray) or not indices.size:
                continue
            least, most = int(indices.min()), int(indices.max())
            for bound in bounds:
                if not -bound.size <= least <= most < bound.size:
                    raise InvalidArgument(
                        f"indices from {least} to {most} in {name!r} lead outside of the "
                        f"{bound.size} elements that layer {bound.layer!r} picks from",
                        field=f"inputs[{name!r}]",
                    )
