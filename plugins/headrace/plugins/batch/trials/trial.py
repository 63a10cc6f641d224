"""Tries out whether a network computes each row by itself: runs rows apart and together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from headrace.plugins.batch.batching.rows import part
from headrace.runtime.errors import Cancelled, HeadraceError, Unavailable
from headrace.runtime.network.network import Port
from headrace.runtime.network.values import Array, Value

Run: TypeAlias = Callable[[Mapping[str, Value]], Mapping[str, Value]]

ROWS: Final = 3
_SIZES: Final = (64, 16, 224, 1)
"""Sizes that are tried for dynamic dimensions until the network takes one."""
_MOST_ELEMENTS: Final = 2**26
"""The most elements of a row that is tried. The rows of a trial then take some GiB of memory."""
_SCALES: Final = (1.0, 8.0, 0.125)
"""Scales of the rows. They differ, so that a statistic over all rows would visibly change each row.
"""
_TOLERANCE: Final = 2e-3
"""Tolerance relative to the largest element. Kernels for other sizes may round differently."""
_COARSE_TOLERANCE: Final = 2e-2  # float16 and less


class Inconclusive(Exception):
    """The trial shows nothing. The message says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Random rows that the network takes, and its results for each row alone."""

    rows: Sequence[Mapping[str, Array]]
    results: Sequence[Mapping[str, Value]]


def sample(inputs: Sequence[Port], apart: Run, count: int = ROWS) -> Sample:
    """Finds rows that the network can run.

    Args:
        apart: runs one row.

    Raises:
        Inconclusive: the network takes none of the values that were tried, or its rows are too
            large.
        Cancelled, Unavailable: from a run.
    """
    reason = ""
    for size in _sizes(inputs):
        elements = sum(math.prod(_shape(port, size)) for port in inputs)
        if elements > _MOST_ELEMENTS:
            reason = reason or f"a row has {elements} elements; at most {_MOST_ELEMENTS} are tried"
            continue
        rows = _random_rows(inputs, size, count)
        try:
            return Sample(rows, [apart(row) for row in rows])
        except (Cancelled, Unavailable):
            raise
        except HeadraceError as error:
            reason = reason or error.message
    raise Inconclusive(f"it takes none of the values that were tried ({reason})")


def try_out(given: Sample, together: Run) -> tuple[str, frozenset[str]]:
    """Runs the rows as one batch, and compares the results with those of single rows.

    Args:
        together: runs all the rows at once.

    Returns:
        The reason why rows cannot run together, empty if they can, and the outputs that have no
        batch dimension.

    Raises:
        Inconclusive: the network gives the same results for all of the rows.
        Cancelled, Unavailable: from a run.
    """
    rows, count = given.rows, len(given.rows)
    try:
        outputs = together({name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
    except (Cancelled, Unavailable):
        raise
    except HeadraceError as error:
        return f"it fails with a batch of {count} rows ({error.message})", frozenset()
    shared: set[str] = set()
    differ = False
    for name, value in outputs.items():
        expected = [each[name] for each in given.results]
        differ |= any(not _same(expected[0], other) for other in expected[1:])
        if all(_same(value, other) for other in expected):
            shared.add(name)
            continue
        try:
            found = part({name: value}, [1] * count, frozenset(), count)
        except HeadraceError:
            return f"output {name!r} of {count} rows has no batch dimension", frozenset()
        for each, other in zip(found, expected, strict=True):
            if not _same(each[name], other):
                return f"a row's {name!r} depends on the other rows", frozenset()
    if not differ:
        raise Inconclusive("it gives the same for all of the random rows")
    return "", frozenset(shared)


def _random_rows(inputs: Sequence[Port], size: int, count: int) -> list[dict[str, Array]]:
    """
    Args:
        size: the size for dynamic dimensions other than the batch.
    """
    random = np.random.default_rng(0)
    return [
        {port.name: _value(port, size, scale, random) for port in inputs}
        for scale in _SCALES[:count]
    ]


def _sizes(inputs: Sequence[Port]) -> Iterator[int]:
    fixed = all(isinstance(size, int) for port in inputs for size in (port.shape or ())[1:])
    yield from _SIZES[:1] if fixed else _SIZES


def _shape(port: Port, size: int) -> list[int]:
    assert port.shape is not None
    return [1, *(each if isinstance(each, int) else size for each in port.shape[1:])]


def _value(port: Port, size: int, scale: float, random: np.random.Generator) -> Array:
    shape = _shape(port, size)
    dtype = port.dtype.numpy()
    if dtype.kind == "O":
        return np.array(random.choice(["a", "bc", ""], shape), object)
    if dtype.kind in "iub":
        return random.integers(0, 2, shape).astype(dtype)  # may be an index into something small
    return np.asarray(scale * random.standard_normal(shape)).astype(dtype)


def _same(a: Value, b: Value) -> bool:
    assert isinstance(a, np.ndarray)
    assert isinstance(b, np.ndarray)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "iubO" or not a.size:
        return bool(np.array_equal(a, b))
    coarse = a.dtype.itemsize < 4
    precise = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(precise), b.astype(precise)
    finite = np.abs(y[np.isfinite(y)])
    most = float(finite.max()) if finite.size else 0.0
    tolerance = (_COARSE_TOLERANCE if coarse else _TOLERANCE) * most + 1e-12
    return bool(np.allclose(x, y, rtol=0.0, atol=tolerance, equal_nan=True))
