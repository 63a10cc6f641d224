"""Tries out whether a network computes each row by itself: runs rows apart and together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from headrace.plugins.batch.running.rows import part
from headrace.runtime.errors import Cancelled, HeadraceError, Unavailable
from headrace.runtime.network.network import Port
from headrace.runtime.network.values import Array, Value

Run: TypeAlias = Callable[[Mapping[str, Value]], Mapping[str, Value]]

ROWS: Final = 3
_SIZES: Final = (64, 16, 224, 1)
"""Sizes that are tried for dynamic dimensions until the network takes one."""
_LONG: Final = 4096
"""The same for inputs with a single such dimension, which may be a signal."""
_MOST_ELEMENTS: Final = 2**26
"""The most elements of a row that is tried. The rows of a trial then take some GiB of memory."""
_SCALES: Final = (1.0, 8.0, 0.125)
"""Scales of the rows. They differ, so that a statistic over all rows would visibly change each row.
"""
_EXTREMES: Final = (float("nan"), 1e6, -1e6, 0.0)
"""What other callers' rows may be full of."""
_DRAWS: Final = 12
"""Rows that are tried of each size, until enough of them have different results."""
_TOLERANCE: Final = 1e-4
"""Tolerance relative to the largest element. Kernels for other sizes may round differently."""
_COARSE_TOLERANCE: Final = 2e-2
"""The same for results of float16 and less, and where a device computes in them."""


class Inconclusive(Exception):
    """The trial shows nothing. The message says why."""


class TrialRow(NamedTuple):
    """A random row that the network takes, and its results for the row alone."""

    inputs: Mapping[str, Array]
    results: Mapping[str, Value]


class Sample(NamedTuple):
    """Some rows.

    Attributes:
        different: how many of them have results that no other one has.
    """

    rows: Sequence[TrialRow]
    different: int


def sample(inputs: Sequence[Port], apart: Run, count: int = ROWS) -> Sample:
    """Finds rows that the network can run, with different results if it gives any.

    Args:
        apart: runs one row.

    Raises:
        Inconclusive: the network takes none of the values that were tried, or its rows are too
            large.
        Cancelled, Unavailable: from a run.
    """
    reason, best = "", Sample((), 0)
    for size in _sizes(inputs):
        elements = sum(math.prod(_shape(port, size)) for port in inputs)
        if elements > _MOST_ELEMENTS:
            reason = reason or f"a row has {elements} elements; at most {_MOST_ELEMENTS} are tried"
            continue
        trials: list[TrialRow] = []
        others: list[TrialRow] = []
        for inputs_of_row in _random_rows(inputs, size):
            try:
                row = TrialRow(inputs_of_row, apart(inputs_of_row))
            except (Cancelled, Unavailable):
                raise
            except HeadraceError as error:
                reason = reason or error.message
                if not trials:
                    break  # another size may do
                continue
            new = all(_differ(row, trial) for trial in trials)
            (trials if new else others).append(row)
            if len(trials) == count:
                return Sample(trials, count)
        rows = [*trials, *others][:count]
        if len(rows) == count and len(trials) > best.different:
            best = Sample(rows, len(trials))
    if best.rows:
        return best
    raise Inconclusive(f"it takes none of the values that were tried ({reason})")


def _differ(one: TrialRow, other: TrialRow) -> bool:
    return any(not _same(value, other.results[name]) for name, value in one.results.items())


def try_out(given: Sample, together: Run, *, precise: bool = True) -> tuple[str, frozenset[str]]:
    """Runs the rows as two batches, of other rows in another order, and compares each row's results
    with those of the row alone. Then runs a row beside extreme ones, because rows may meet only for
    some values: one caller's NaN in the mean of all, for instance.

    Args:
        together: runs several rows at once.
        precise: whether the device computes with 32 bits or more.

    Returns:
        The reason why rows cannot run together, empty if they can, and the outputs that have no
        batch dimension.

    Raises:
        Inconclusive: the network gives the same results for all of the rows.
        Cancelled, Unavailable: from a run.
    """
    same, shared = partial(_same, precise=precise), frozenset(given.rows[0].results)
    for rows in (given.rows, (given.rows[-1], given.rows[0])):
        why, whole = _tried(rows, together, same)
        if why:
            return why, frozenset()
        shared &= whole
    if given.different < 2:
        raise Inconclusive("it gives the same for all of the random rows")
    for extreme in _EXTREMES:
        why = _beside(given.rows[0], extreme, together, same, shared)
        if why:
            return why, frozenset()
    return "", shared


def _beside(
    row: TrialRow,
    extreme: float,
    together: Run,
    same: Callable[[Value, Value], bool],
    shared: frozenset[str],
) -> str:
    """Why a row does not give the same beside a row of this number. Empty if it does, or if the
    network does not take that row."""
    pairs = {name: (array, _filled(array, extreme)) for name, array in row.inputs.items()}
    try:
        outputs = together({name: np.concatenate(pair) for name, pair in pairs.items()})
        found = part(outputs, [1, 1], shared, 2)[0]
    except (Cancelled, Unavailable):
        raise
    except HeadraceError:
        return ""
    for name, value in found.items():
        if not same(value, row.results[name]):
            return f"a row's {name!r} depends on the other rows, if one is of {extreme:g}"
    return ""


def _filled(array: Array, number: float) -> Array:
    """As many of this number, or of the largest one of the type. What is no real number stays as it
    is: integers may be indices."""
    if array.dtype.kind not in "fV":
        return array
    most = float(ml_dtypes.finfo(array.dtype).max)  # type: ignore[no-untyped-call]
    return np.full_like(array, np.clip(number, -most, most))


def _tried(
    rows: Sequence[TrialRow], together: Run, same: Callable[[Value, Value], bool]
) -> tuple[str, frozenset[str]]:
    """What `try_out` returns, for one batch."""
    count = len(rows)
    try:
        names = rows[0].inputs
        outputs = together({name: np.concatenate([r.inputs[name] for r in rows]) for name in names})
    except (Cancelled, Unavailable):
        raise
    except HeadraceError as error:
        return f"it fails with a batch of {count} rows ({error.message})", frozenset()
    shared: set[str] = set()
    for name, value in outputs.items():
        if all(same(value, row.results[name]) for row in rows):
            shared.add(name)
            continue
        try:
            found = part({name: value}, [1] * count, frozenset(), count)
        except HeadraceError:
            return f"output {name!r} of {count} rows has no batch dimension", frozenset()
        pairs = zip(found, rows, strict=True)
        if not all(same(each[name], row.results[name]) for each, row in pairs):
            return f"a row's {name!r} depends on the other rows", frozenset()
    return "", frozenset(shared)


def _random_rows(inputs: Sequence[Port], size: int) -> Iterator[dict[str, Array]]:
    """
    Args:
        size: the size for dynamic dimensions other than the batch.
    """
    random = np.random.default_rng(0)
    for draw in range(_DRAWS):
        scale = _SCALES[draw % len(_SCALES)]
        below = (2, 2, 2, 16, size + 1)[draw % 5]  # it may be an index into something small
        yield {port.name: _value(port, size, scale, below, random) for port in inputs}


def _sizes(inputs: Sequence[Port]) -> Iterator[int]:
    free = [sum(not isinstance(size, int) for size in (port.shape or ())[1:]) for port in inputs]
    yield from _SIZES if any(free) else _SIZES[:1]
    if max(free) == 1:
        yield _LONG


def _shape(port: Port, size: int) -> list[int]:
    assert port.shape is not None
    return [1, *(length if isinstance(length, int) else size for length in port.shape[1:])]


def _value(port: Port, size: int, scale: float, below: int, random: np.random.Generator) -> Array:
    shape = _shape(port, size)
    dtype = port.dtype.numpy()
    if dtype.kind == "O":
        return np.array(random.choice(["a", "bc", ""], shape), object)
    if dtype.kind in "iub":
        return random.integers(0, below, shape).astype(dtype)
    return np.asarray(scale * random.standard_normal(shape)).astype(dtype)


def _same(a: Value, b: Value, *, precise: bool = True) -> bool:
    assert isinstance(a, np.ndarray)
    assert isinstance(b, np.ndarray)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "iubO" or not a.size:
        return bool(np.array_equal(a, b))
    tolerance = _TOLERANCE if precise and a.dtype.itemsize >= 4 else _COARSE_TOLERANCE
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    finite = np.abs(y[np.isfinite(y)])
    most = float(finite.max()) if finite.size else 0.0
    return bool(np.allclose(x, y, rtol=0.0, atol=tolerance * most + 1e-12, equal_nan=True))
