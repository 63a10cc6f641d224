"""A step that runs its network once for each row of a tensor, or for each element of a sequence,
and puts the results together."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.runtime.errors import Cancelled, FailedPrecondition, InvalidArgument
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.trampoline import Trampoline
from headrace.runtime.network.network import Port
from headrace.runtime.network.values import Value
from headrace.runtime.pipelines.description import PipelineStep
from headrace.runtime.pipelines.ports import Rows
from headrace.runtime.virtual.part_job import PartJob

if TYPE_CHECKING:
    from headrace.plugins.pipeline.running.request import PipelineRequest

MAX_ROWS: Final = 10_000
"""The most rows of one tensor in one request."""
WINDOW: Final = 32
"""How many rows of one step of one request run at once. More would not fill a device more, and
would take memory from other requests."""


class RowsRun:
    """The rows of one step of one request. Thread-safe: `_lock` guards all that changes.

    Args:
        at: the step's place among all.
        places: how many rows lie along each axis; at least one.
        token: of all rows together.
    """

    def __init__(
        self,
        owner: PipelineRequest,
        at: int,
        rows: Rows,
        step: PipelineStep,
        inputs: Mapping[str, Value],
        places: tuple[int, ...],
        token: CancelToken,
    ) -> None:
        count = math.prod(places)
        self._places = places
        self._owner = owner
        self._at = at
        self._rows = rows
        self._step = step
        self._inputs = dict(inputs)
        self._count = count
        self._token = token
        self._lock = threading.Lock()
        self._next = min(WINDOW, count)
        self._left = self._next  # rows that are on a device, or about to be
        self._parts: list[Job | None] = [None] * count
        self._outputs: list[dict[str, Value]] = [{}] * count
        self._failure: tuple[int, BaseException] | None = None
        self._trampoline: Trampoline[int] = Trampoline()

    def start(self, *, inline: bool) -> None:
        self._trampoline(self._submit, range(self._next), inline=inline)

    def _submit(self, row: int, inline: bool) -> None:
        inputs = dict(self._inputs)
        for name in self._step.each:
            value = inputs[name]
            assert value is not None
            if name in self._rows.axes:
                assert isinstance(value, np.ndarray)
                place = np.unravel_index(row, self._places)
                inputs[name] = np.asarray(value[place[: len(self._rows.axes[name])]])
            else:
                inputs[name] = value[row : row + 1] if name in self._rows.kept else value[row]
        ended = _RowEnd(self, row)
        self._owner.submit_part(self._at, row, inputs, ended, self._token, inline=inline)

    def ended(self, row: int, part: Job) -> None:
        """Takes the outputs of a row, and begins the next one."""
        assert isinstance(part, PartJob)
        outputs, error = part.take_outputs()
        with self._lock:
            is_first = error is not None and self._failure is None
            if error is not None:
                self._failure = self._failure or (row, error)
            else:
                self._parts[row], self._outputs[row] = part, outputs
            then = self._next if self._failure is None and self._next < self._count else None
            if then is not None:
                self._next += 1
            else:
                self._left -= 1
            over = not self._left
        if is_first:
            self._token.cancel(Cancelled("another row of the step failed"))
        if then is not None:
            self._trampoline(self._submit, (then,))
        elif over:
            self._end()

    def _end(self) -> None:
        self._token.close()
        self._inputs = {}
        if self._failure is not None:
            self._outputs = []
            self._owner.row_failed(self._at, *self._failure)
            return
        parts = [part for part in self._parts if part is not None]
        outputs, self._outputs = self._outputs, []
        self._owner.rows_ended(self._at, parts, outputs, self._places)


class _RowEnd:
    """Tells the rows of a step that one has ended."""

    __slots__ = ("_row", "_run")

    def __init__(self, run: RowsRun, row: int) -> None:
        self._run = run
        self._row = row

    def __call__(self, part: Job) -> None:
        self._run.ended(self._row, part)


def places_of(step: PipelineStep, rows: Rows, inputs: Mapping[str, Value]) -> tuple[int, ...]:
    """How many rows lie along each axis that the tensors lose, of those that a step takes apart, or
    how many elements the sequences have.

    Raises:
        InvalidArgument: one has none to take, has too many, or has another number of them.
    """
    found: dict[str, tuple[int, ...]] = {}
    for name in step.each:
        axes = rows.axes.get(name, (None,))
        value = inputs.get(name)
        if rows.elements and isinstance(value, list):
            found[name] = (len(value),)
        elif not rows.elements and isinstance(value, np.ndarray) and value.ndim >= len(axes):
            found[name] = value.shape[: len(axes)]
        else:
            kind = "a sequence" if rows.elements else "a tensor with rows"
            raise InvalidArgument(f"input {name!r} takes {kind}", field=f"inputs[{name!r}]")
        if any(size not in (None, own) for size, own in zip(axes, found[name], strict=True)):
            wanted = ["any" if size is None else size for size in axes]
            raise InvalidArgument(
                f"input {name!r} has {list(found[name])} rows; {wanted} are expected",
                field=f"inputs[{name!r}].shape",
            )
        count = math.prod(found[name])
        if count > MAX_ROWS:
            raise InvalidArgument(
                f"input {name!r} has {count} rows; at most {MAX_ROWS} run in one request",
                field=f"inputs[{name!r}].shape",
            )
    longest = max(found.values(), key=len)
    if any(longest[: len(places)] != places for places in found.values()):
        told = ", ".join(
            f"{name!r} has {places[0] if len(places) == 1 else list(places)}"
            for name, places in found.items()
        )
        raise InvalidArgument(
            f"the inputs have different numbers of rows: {told}",
            field=f"inputs[{step.each[-1]!r}].shape",
        )
    return longest


def gathered(name: str, values: Sequence[Value], rows: Rows, places: tuple[int, ...]) -> Value:
    """The tensor, or the sequence, that the rows' results make, in order.

    Args:
        name: of the tensor that is made.
        places: how many rows lie along each axis.

    Raises:
        FailedPrecondition: the results have different shapes or types, or are no tensors.
    """
    arrays = [each for each in values if isinstance(each, np.ndarray)]
    first = arrays[0] if arrays else None
    if first is None or len(arrays) < len(values):
        raise FailedPrecondition(f"a row of {name!r} is no tensor")
    if rows.elements:
        return list(values)
    joined = name in rows.joined
    for row, array in enumerate(arrays):
        if array.shape != first.shape or array.dtype != first.dtype:
            raise FailedPrecondition(
                f"row {row} of {name!r} has the shape {list(array.shape)}, and row 0 "
                f"{list(first.shape)}; rows must be alike to be put together"
            )
    if joined and first.shape[0] != 1:
        raise FailedPrecondition(f"one row of {name!r} gave {first.shape[0]} rows, not one")
    if joined:
        return np.concatenate(arrays)
    stacked = np.stack(arrays)
    return stacked.reshape(*places, *first.shape)


def empty(port: Port, places: tuple[int, ...] = (0,)) -> Value:
    """A tensor of a port without rows along its first axes, or a sequence without elements."""
    if port.kind == "sequence":
        return []
    shape = (port.shape or ())[len(places) :]
    sizes = [size if isinstance(size, int) else 0 for size in shape]
    return np.zeros((*places, *sizes), port.dtype.numpy())
