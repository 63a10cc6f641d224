"""Operators that pick parts of a tensor, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from heapq import merge
from typing import Any, Final

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml.op_tree_ensemble import TreeEnsemble as OpTreeEnsemble
from onnx.reference.ops.op_cum_prod import CumProd as OpCumProd
from onnx.reference.ops.op_cum_sum import CumSum as OpCumSum

from headrace.runtime.network.reference.texts import are_texts

_PIECE: Final = 8192


def _along_an_axis(base: Any) -> Any:
    """A cumulation that refuses an axis that is out of bounds. NumPy takes the least integer for
    all axes.

    https://onnx.ai/onnx/operators/onnx__CumSum.html
    """

    class Cumulation(base):  # type: ignore[misc]
        def _run(self, x: Any, axis: Any, **options: Any) -> tuple[Any, ...]:
            known = np.asarray(range(x.ndim)[np.asarray(axis).item()])
            results: tuple[Any, ...] = super()._run(x, known, **options)
            return results

    Cumulation.__name__ = base.__name__  # the evaluator finds it by this name
    return Cumulation


CUMULATIONS = tuple(map(_along_an_axis, (OpCumProd, OpCumSum)))


class GatherElements(OpRun):
    """Gathers from axes of any size. Other axes may have fewer indices than elements.

    https://onnx.ai/onnx/operators/onnx__GatherElements.html
    """

    def _run(self, data: Any, indices: Any, axis: int = 0) -> tuple[Any, ...]:
        axis = range(data.ndim)[axis]
        size = data.shape[axis]
        if ((indices < -size) | (indices >= size)).any():
            raise IndexError(f"an index is out of bounds for an axis of {size} elements")
        kept = [slice(None) if at == axis else slice(n) for at, n in enumerate(indices.shape)]
        return (np.take_along_axis(data[tuple(kept)], indices, axis),)


class TreeEnsemble(OpTreeEnsemble):
    """Refuses to transform the sums of the leaves, because onnx leaves that out."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if getattr(self, "post_transform", 0):
            raise NotImplementedError("TreeEnsemble with a post_transform")


class Trilu(OpRun):
    """Accepts any integer as the diagonal. A diagonal far outside keeps all elements, or none.

    https://onnx.ai/onnx/operators/onnx__Trilu.html
    """

    def _run(self, x: Any, k: Any = None, upper: int = 1) -> tuple[Any, ...]:
        sides = sum(x.shape[-2:])
        diagonal = 0 if k is None else min(max(np.asarray(k).item(), -sides), sides)
        return ((np.triu if upper else np.tril)(x, diagonal).astype(x.dtype),)


class Unique(OpRun):
    """The unique elements, or the unique parts along an axis, sorted or in the order in which they
    first appear. Of texts it has no parts, as NumPy has none.

    https://onnx.ai/onnx/operators/onnx__Unique.html
    """

    def _run(self, x: Any, axis: int | None = None, sorted: int = 1) -> tuple[Any, ...]:
        flat, along = (x.reshape(-1), 0) if axis is None else (x, axis)
        find = _unique_texts if axis is None and are_texts(x) else np.unique
        found, first, inverse, counts = find(flat, True, True, True, axis=along)
        inverse = inverse.reshape(-1)
        if not sorted:
            order = np.argsort(first)
            found, first, counts = found.take(order, along), first[order], counts[order]
            inverse = np.argsort(order)[inverse]
        made = (found, *(array.astype(np.int64) for array in (first, inverse, counts)))
        return made[: len(self.output)]


def _unique_texts(texts: Any, *_: bool, **_axis: int) -> tuple[Any, ...]:
    """Does what `np.unique` does. It sorts some thousand texts at a time, because no other thread
    runs while Python or NumPy sorts a list."""
    listed: list[str] = texts.tolist()
    firsts: dict[str, int] = {}
    for at, text in enumerate(listed):
        firsts.setdefault(text, at)
    distinct = [*firsts]
    pieces = [sorted(distinct[at : at + _PIECE]) for at in range(0, len(distinct), _PIECE)]
    ordered = [*merge(*pieces)]
    places = {text: at for at, text in enumerate(ordered)}
    inverse = np.array([places[text] for text in listed], np.int64)
    first = np.array([firsts[text] for text in ordered], np.int64)
    counts = np.bincount(inverse, minlength=len(ordered))
    return np.array(ordered, object), first, inverse, counts
