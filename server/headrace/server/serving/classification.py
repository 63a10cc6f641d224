"""The classification extension: an output's highest values as text, "value:index:label"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.network import Port
from headrace.runtime.network.values import Array
from headrace.runtime.transform.options import Presentation

_KINDS = "fiu"


def labels_of(presentation: Presentation, port: Port) -> Sequence[str]:
    """The labels of an output's classes: those that a file gives, or else the network's own. Empty
    if there are none."""
    return presentation.labels_of(port.name) or [str(label) for label in port.classes]


def classify(array: Array, name: str, count: int, labels: Sequence[str], *, rows: bool) -> Array:
    """The highest `count` values, the highest first. Smaller outputs give all their values.

    Args:
        rows: whether the first dimension is a batch. Each row of a batch is classified separately.

    Returns:
        Text of shape [rows, count] or [count].

    Raises:
        InvalidArgument: the output does not hold numbers.
    """
    kind = array.dtype.kind
    # The kind of bfloat16 is "V".
    numbers = array.astype(np.float32) if kind == "V" or array.dtype.itemsize == 2 else array
    if numbers.dtype.kind not in _KINDS:
        raise InvalidArgument(
            f"output {name!r} holds {array.dtype.name}, which has no highest value; ask for the "
            "output itself",
            field=f"outputs[{name!r}].parameters['classification']",
        )
    batch = array.shape[0] if rows and array.ndim else 1
    table = numbers.reshape(batch, -1) if numbers.size else numbers.reshape(batch, 0)
    count = min(count, table.shape[1])
    classes: Array = np.empty((batch, count), object)
    for row, values in enumerate(table):
        for place, index in enumerate(_highest(values, count)):
            text = _text(values[index])
            label = labels[index] if index < len(labels) else ""
            classes[row, place] = f"{text}:{index}:{label}" if label else f"{text}:{index}"
    return classes if rows else classes[0]


def _highest(values: Array, count: int) -> list[int]:
    """Indices of the highest values. Equal values keep their order, and NaN goes last."""
    if not count:
        return []
    ranked = -values.astype(np.float64)
    candidates = np.arange(len(values))
    if count < len(values):
        limit = np.partition(ranked, count - 1)[count - 1]
        if not np.isnan(limit):
            candidates = np.flatnonzero(ranked <= limit)
    order = np.argsort(ranked[candidates], kind="stable")[:count]
    found: list[int] = candidates[order].tolist()
    return found


def _text(value: np.generic) -> str:
    return f"{value:f}" if value.dtype.kind == "f" else str(value)
