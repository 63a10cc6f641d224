"""Finds indices that are out of bounds. They are an error in ONNX, but a kernel would read past the
end of the data.

Only indices that are inputs of the network are checked, before the network runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import onnx_ir as ir

from headrace.runtime.errors import InvalidArgument

_INDEXING: Final = ("Gather", "GatherElements", "ScatterElements")
"""Operators whose second input has indices along one axis of the first."""


class _Bound(NamedTuple):
    """The bounds of a layer's indices.

    Attributes:
        axis: the data's axis that the indices refer to.
        data: the name of the data if it is an input of the network, otherwise empty.
        sizes: the sizes of the data's axes. None: the data's shape is not known before a run.
    """

    layer: str
    axis: int
    data: str
    sizes: tuple[int | None, ...] | None


class IndexBounds:
    """The bounds that a model's index inputs have to stay within. Immutable."""

    def __init__(self, model: ir.Model) -> None:
        self._bounds: dict[str, list[_Bound]] = {}
        inputs = set(model.graph.inputs)
        for node in model.graph:
            if node.op_type not in _INDEXING or node.domain:
                continue
            data, indices = node.inputs[0], node.inputs[1]
            if data is None or indices not in inputs:
                continue
            known = data.name or "" if data in inputs else ""
            sizes = None if data.shape is None else tuple(map(_known, data.shape))
            bound = _Bound(node.name or "", node.attributes.get_int("axis", 0), known, sizes)
            self._bounds.setdefault(indices.name or "", []).append(bound)

    def check(self, inputs: Mapping[str, Any]) -> None:
        """
        Raises:
            InvalidArgument: an index is out of bounds. The message names the input and the layer.
        """
        for name, bounds in self._bounds.items():
            indices = inputs.get(name)
            if not isinstance(indices, np.ndarray) or not indices.size:
                continue
            for bound in bounds:
                data = inputs.get(bound.data)
                sizes = data.shape if isinstance(data, np.ndarray) else bound.sizes
                _check(name, indices, bound, sizes or ())


def _check(name: str, indices: np.ndarray, bound: _Bound, sizes: tuple[int | None, ...]) -> None:
    size = sizes[bound.axis] if -len(sizes) <= bound.axis < len(sizes) else None
    least, most = int(indices.min()), int(indices.max())
    if size is not None and not -size <= least <= most < size:
        raise InvalidArgument(
            f"indices from {least} to {most} in {name!r} are out of bounds: layer "
            f"{bound.layer!r} picks from {size} elements",
            field=f"inputs[{name!r}]",
        )


def _known(size: int | ir.SymbolicDim) -> int | None:
    return size if isinstance(size, int) else None
