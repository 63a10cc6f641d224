"""Bounds on the texts that a layer takes and makes.

Texts are Python's objects. What NumPy does with an array of them is one call that no other thread
of the process interrupts: no other network, no probe, no timeout, no signal. So a layer gets few
enough texts that such a call takes some milliseconds. What takes longer for each text runs in
pieces (`_ELEMENT_BY_ELEMENT`) or in Python (`sequences`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import zip_longest
from math import prod
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx

from headrace.runtime.errors import InvalidArgument

MOST_TEXTS: Final = 262_144
MOST_CHARACTERS: Final = 4_194_304
_PIECE: Final = 16_384

_LABELS: Final = ("classlabels_strings", "values_strings", "values_tensor")
_DEFAULTS: Final = ("default_string", "default_tensor")
"""Attributes whose texts a layer gives out. onnx makes arrays that are as wide as the longest."""

_BY_ROW: Final = frozenset({"LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"})

_ELEMENT_BY_ELEMENT: Final = frozenset({"Cast", "CastLike", "Erf", "LabelEncoder"})
"""Operators that take long for each element. For an Erf and a LabelEncoder, onnx makes an object of
each number."""

REFUSING: Final = frozenset({"Col2Im", "GridSample", "OneHot", "Resize", "Upsample"})
"""Operators that ONNX lets take texts, and onnx's evaluator does not."""


def _gathered(data: Any, indices: Any, axis: int = 0, **_: Any) -> int:
    sizes = [*data.shape]
    del sizes[range(data.ndim)[axis]]
    return int(prod(sizes) * indices.size)


def _gathered_parts(data: Any, indices: Any, batch_dims: int = 0, **_: Any) -> int:
    return int(prod(indices.shape[:-1]) * prod(data.shape[batch_dims + indices.shape[-1] :]))


def _padded(data: Any, pads: Any, *more: Any, **_: Any) -> int:
    axes = more[1] if len(more) > 1 and more[1] is not None else range(data.ndim)
    sizes, added = [*data.shape], np.asarray(pads).reshape(-1).tolist()
    for at, axis in enumerate(np.asarray(axes).reshape(-1).tolist()):
        sizes[axis] += sum(max(0, pad) for pad in added[at :: len(axes)])
    return prod(sizes)


def _cropped(data: Any, shape: Any, axes: Any = None, **_: Any) -> int:
    sizes = [*data.shape]
    for axis, size in zip(axes or range(data.ndim), shape.reshape(-1).tolist(), strict=True):
        sizes[axis] = size
    return prod(sizes)


def _longest(texts: Any) -> int:
    return max(map(len, texts.reshape(-1).tolist()), default=0)


def _joined(x: Any, y: Any) -> int:
    """onnx makes every text as wide as the longest one."""
    count = _broadcast(x, y)
    refuse_many(count, count * (_longest(x) + _longest(y)))
    return count


def _divided(x: Any, **_: Any) -> int:
    refuse_many(x.size, x.size * _longest(x))
    return int(x.size)


def _broadcast(*inputs: Any, **_: Any) -> int:
    return prod(np.broadcast_shapes(*(np.shape(value) for value in inputs)))


def _expanded(data: Any, shape: Any) -> int:
    sizes = zip_longest(data.shape[::-1], shape.reshape(-1).tolist()[::-1], fillvalue=1)
    return prod(map(max, sizes))


GROWING: Final[Mapping[str, Callable[..., int]]] = MappingProxyType(
    {
        "ArrayFeatureExtractor": lambda x, at: prod(x.shape[:-1]) * int(at.size),
        "CenterCropPad": _cropped,
        "Equal": _broadcast,
        "Expand": _expanded,
        "Gather": _gathered,
        "GatherElements": lambda _data, indices, **_: int(indices.size),
        "GatherND": _gathered_parts,
        "Pad": _padded,
        "StringConcat": _joined,
        "StringSplit": _divided,
        "Tile": lambda x, times: x.size * prod(times.reshape(-1).tolist()),
        "Where": _broadcast,
    }
)
"""How many elements these operators make of their inputs and attributes."""


def refuse_many(count: int, characters: int = 0) -> None:
    """Raises if these are more texts, or characters in them, than a layer may hold."""
    if count > MOST_TEXTS or characters > MOST_CHARACTERS:
        what = f"{count:,} texts" if count > MOST_TEXTS else f"texts of {characters:,} characters"
        raise InvalidArgument(  # onnx's operators hide the text of a ValueError
            f"{what} are too many for one layer on this device: it takes and makes at most "
            f"{MOST_TEXTS:,} texts with {MOST_CHARACTERS:,} characters together; send fewer, "
            "or use another device"
        )


def with_few_texts(operator: str, base: Any) -> Any:
    """The evaluator's class for an operator, which refuses too many texts before it computes."""
    return _bounded(operator, base) if isinstance(base, type) else base


def are_texts(value: Any) -> bool:
    """Whether the value is a text, or an array of texts."""
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype.kind in "OSU")


def count_texts(value: Any) -> tuple[int, int]:
    """The number of texts in the value, and of their characters."""
    if isinstance(value, list):
        counts = [count_texts(item) for item in value]
        return sum(count for count, _ in counts), sum(characters for _, characters in counts)
    if isinstance(value, str):
        return 1, len(value)
    if not are_texts(value):
        return 0, 0
    refuse_many(value.size)
    return value.size, sum(map(len, value.reshape(-1).tolist()))


def _refuse_values(values: Iterable[Any]) -> None:
    refuse_many(*count_texts([*values]))


@cache
def _bounded(operator: str, base: Any) -> Any:
    size = GROWING.get(operator)

    class Bounded(base):  # type: ignore[misc]
        def __init__(self, node: Any, *arguments: Any) -> None:
            for attribute in node.attribute:
                _refuse_attribute(operator, attribute)
            super().__init__(node, *arguments)
            self._takes_texts = operator not in REFUSING and _may_take_texts(self._schema)

        def _run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
            _refuse_values(inputs)
            if any(map(are_texts, inputs)):
                if not self._takes_texts:
                    raise NotImplementedError(f"{operator} does not take texts here")
                refuse_many(size(*inputs, **options) if size is not None else 0)
            if operator in _BY_ROW:
                _refuse_labels(len(np.atleast_2d(inputs[0])), options)
            if operator in _ELEMENT_BY_ELEMENT:
                results = _in_pieces(super()._run, inputs, options)
            else:
                results = super()._run(*inputs, **options)
            _refuse_values(results)
            return results

    Bounded.__name__ = base.__name__  # the evaluator finds the operator's schema by this name
    return Bounded


def _may_take_texts(schema: Any) -> bool:
    if schema is None:
        return False
    named = (name for kind in schema.type_constraints for name in kind.allowed_type_strs)
    return any("string" in name for name in (*named, *(port.type_str for port in schema.inputs)))


def _refuse_attribute(operator: str, attribute: onnx.AttributeProto) -> None:
    """A layer's list of texts is bounded as its inputs are. A LabelEncoder makes a dictionary of
    its keys in each run."""
    count = len(attribute.strings)
    if operator == "LabelEncoder":
        sizes = len(attribute.ints), len(attribute.floats), prod(attribute.t.dims)
        count = max(count, *sizes)
    refuse_many(count, sum(map(len, attribute.strings)) if count <= MOST_TEXTS else 0)


def _refuse_labels(count: int, options: Mapping[str, Any]) -> None:
    """Refuses as many labels as these, each as long as the longest."""
    labels = _texts_of(options, _LABELS)
    if labels:
        longest = max(map(len, labels + _texts_of(options, _DEFAULTS)))
        refuse_many(count, count * longest)


def _texts_of(options: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    given = (options[name] for name in names if options.get(name) is not None)
    texts = (each for value in given for each in np.asarray(value, object).reshape(-1).tolist())
    return [text for text in texts if isinstance(text, str)]


def _in_pieces(
    run: Callable[..., tuple[Any, ...]],
    inputs: tuple[Any, ...],
    options: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Computes each element by itself, some thousand at a time."""
    x, *more = inputs
    x = np.asarray(x)
    if options.get("to") == onnx.TensorProto.STRING or any(map(are_texts, more)):
        if are_texts(x):
            return (x,)
        refuse_many(x.size)
    _refuse_labels(x.size, options)
    if x.size <= _PIECE:
        return run(*inputs, **options)
    flat = x.reshape(-1)
    starts = range(0, flat.size, _PIECE)
    pieces = [run(flat[at : at + _PIECE], *more, **options)[0] for at in starts]
    if are_texts(pieces[0]):
        pieces = [piece.astype(object) for piece in pieces]
    return (np.concatenate(pieces).reshape(x.shape),)
