"""Handles requests' values as rows of a batch: says which fit together, joins and parts them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headrace.runtime.errors import Internal
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Array, Value


class Fit(NamedTuple):
    """How a request fits into batches.

    Attributes:
        group: equal for requests that may run together. They ask for the same outputs, and their
            inputs have the same shapes except for the batch dimension. None: the request runs
            alone and unchanged.
        rows: the size of the request's batch dimension.
    """

    group: Hashable
    rows: int


def fit(job: Job, names: Sequence[str]) -> Fit:
    """
    Args:
        names: the network's inputs, each with the batch dimension first.
    """
    if len(job.inputs) > len(names):  # it replaces a value that the network has for all rows
        return Fit(None, 1)
    shapes = []
    rows = -1
    for name in names:
        value = job.inputs.get(name)
        if not isinstance(value, np.ndarray) or not value.shape:
            return Fit(None, 1)
        size, *rest = value.shape
        if rows not in (-1, size):
            return Fit(None, 1)  # the device may accept these inputs
        rows = size
        shapes.append(tuple(rest))
    return Fit((job.output_names, tuple(shapes)), rows) if rows > 0 else Fit(None, 1)


def join(members: Sequence[Job], names: Sequence[str], padded_to: int = 0) -> dict[str, Value]:
    """Joins the members' rows to one batch, in the members' order. Each input is copied once.

    Args:
        padded_to: repeat the last row until the batch has this many rows. 0: no padding.
    """
    joined: dict[str, Value] = {}
    for name in names:
        arrays: list[Array] = [_array(member.inputs[name]) for member in members]
        missing = padded_to - sum(len(array) for array in arrays)
        if missing > 0:
            arrays += [arrays[-1][-1:]] * missing
        joined[name] = np.concatenate(arrays)
    return joined


def part(
    outputs: Mapping[str, Value], rows: Sequence[int], shared: frozenset[str], total: int
) -> list[dict[str, Value]]:
    """Each member's outputs. They are views of the batch's outputs. An output without a batch
    dimension goes whole to every member.

    Args:
        rows: the number of rows of each member.
        shared: the outputs that every member gets whole.
        total: the number of rows that ran, including padding.

    Raises:
        Internal: the device gave an output that cannot be parted.
    """
    parts: list[dict[str, Value]] = [{} for _ in rows]
    for name, value in outputs.items():
        array = _array(value)
        if name in shared:
            for each in parts:
                each[name] = array
            continue
        step, rest = divmod(array.shape[0] if array.shape else 0, total)
        if not step or rest:
            raise Internal(f"output {name!r} of a batch of {total} has the shape {array.shape}")
        start = 0
        for each, count in zip(parts, rows, strict=True):
            end = start + step * count
            each[name] = array[start:end]
            start = end
    return parts


def _array(value: Value) -> Array:
    assert isinstance(value, np.ndarray)
    return value
