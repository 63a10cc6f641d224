"""Finds indices that are out of bounds. They are an error in ONNX, but a kernel of a GPU would read
past the end of the data.

Indices that are inputs of the network are checked before the network runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import onnx_ir as ir

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.constants import const_tensor

_OPERANDS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "Gather": (0, 1),
        "GatherElements": (0, 1),
        "GatherND": (0, 1),
        "RotaryEmbedding": (1, 3),
        "ScatterElements": (0, 1),
        "ScatterND": (0, 1),
    }
)
"""By operator: which of its inputs is indexed, and which has the indices."""
_IN_TUPLES: Final = ("GatherND", "ScatterND")
"""Their indices come in tuples, with an index for each of the data's first axes."""
_FROM_START: Final = ("RotaryEmbedding",)
"""Their indices do not count from an axis's end."""


class _Indexing(NamedTuple):
    """How a layer indexes its data.

    Attributes:
        axis: the data's axis that the indices refer to; the first of them if `in_tuples`.
        in_tuples: whether a tuple of indices picks from several axes.
        from_start: whether an index below zero is out of bounds.
        data: the name of the data if it is an input of the network, otherwise empty.
        sizes: the sizes of the data's axes. None: the data's shape is not known before a run.
    """

    layer: str
    axis: int
    in_tuples: bool
    from_start: bool
    data: str
    sizes: tuple[int | None, ...] | None


class IndexBounds:
    """The bounds that a model's index inputs have to stay within. Immutable."""

    def __init__(self, model: ir.Model) -> None:
        self._bounds: dict[str, list[_Indexing]] = {}
        inputs = set(model.graph.inputs)
        for node in model.graph:
            _, indices = _operands(node)
            if indices is not None and indices in inputs:
                self._bounds.setdefault(indices.name or "", []).append(_indexing(node))

    def check(self, inputs: Mapping[str, Any]) -> None:
        """
        Raises:
            InvalidArgument: an index is out of bounds. The message names the input and the layer.
        """
        for name, bounds in self._bounds.items():
            indices = inputs.get(name)
            if not isinstance(indices, np.ndarray):
                continue
            for bound in bounds:
                data = inputs.get(bound.data)
                sizes = data.shape if isinstance(data, np.ndarray) else bound.sizes
                for least, most, size in _outside(indices, bound, partial(_size, sizes)):
                    raise InvalidArgument(
                        f"indices from {least} to {most} in {name!r} are out of bounds: layer "
                        f"{bound.layer!r} picks from {size} elements",
                        field=f"inputs[{name!r}]",
                    )


def why_unchecked(node: ir.Node, graph: ir.Graph) -> str | None:
    """Why the node's indices may be out of bounds though `IndexBounds` has checked the inputs of a
    run; None if they are certainly not, or if the node has none. Sizes that a model declares for
    what it computes are not certain, and a run may leave out inputs that have a default.

    Args:
        graph: the network's. The node may be in one of its bodies.
    """
    data, indices = _operands(node)
    if data is None or indices is None:
        return None
    bound, constant = _indexing(node), const_tensor(indices)
    has_certain_sizes = data.is_graph_input() != (const_tensor(data) is not None)
    if constant is None:
        if not indices.is_graph_input() or node.graph is not graph:
            return "the network computes its indices or reads them in a body, so nobody checks them"
        if not has_certain_sizes:
            return "the network computes what it picks from, so nobody checks its indices"
        return None

    def size_of(axis: int) -> int:
        size = _size(bound.sizes, axis) if has_certain_sizes else None
        return 1 if size is None else size  # the least that most axes have

    if not constant.dtype.is_integer():
        return None  # the backend refuses it
    if indices.is_graph_input() or any(_outside(constant.numpy(), bound, size_of)):
        return "its indices may be out of bounds"
    return None


def _operands(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """What the node indexes, and its indices."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in _OPERANDS:
        return None, None
    data, indices = (
        node.inputs[place] if place < len(node.inputs) else None
        for place in _OPERANDS[node.op_type]
    )
    return data, indices


def _indexing(node: ir.Node) -> _Indexing:
    data, _ = _operands(node)
    in_tuples = node.op_type in _IN_TUPLES
    sizes = None
    if data is not None:
        constant = const_tensor(data)
        shape = data.shape if constant is None else constant.shape
        sizes = None if shape is None else tuple(map(_known, shape))
    return _Indexing(
        node.name or "",
        node.attributes.get_int("batch_dims" if in_tuples else "axis", 0),
        in_tuples,
        node.op_type in _FROM_START,
        data.name or "" if data is not None and data.is_graph_input() else "",
        sizes,
    )


def _outside(
    indices: np.ndarray, bound: _Indexing, size_of: Callable[[int], int | None]
) -> Iterator[tuple[int, int, int]]:
    """The least and the largest index, and the size of the axis, for each axis that the indices
    leave."""
    if not indices.size:
        return
    if bound.in_tuples and indices.ndim:
        tuples = indices.reshape(-1, indices.shape[-1])
    else:
        tuples = indices.reshape(-1, 1)
    for place, (least, most) in enumerate(zip(tuples.min(0), tuples.max(0), strict=True)):
        size = size_of(bound.axis + place)
        if size is not None and not (0 if bound.from_start else -size) <= least <= most < size:
            yield int(least), int(most), size


def _size(sizes: Sequence[int | None] | None, axis: int) -> int | None:
    return sizes[axis] if sizes is not None and -len(sizes) <= axis < len(sizes) else None


def _known(size: int | ir.SymbolicDimProtocol) -> int | None:
    return size if isinstance(size, int) else None
