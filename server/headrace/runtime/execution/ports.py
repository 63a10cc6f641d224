"""Checks that a job's inputs and outputs match what a network declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.runtime.errors import InvalidArgument, did_you_mean
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Port
from headrace.runtime.network.values import Value


class PortCheck:
    """Checks jobs against a network's ports. A job that names no outputs gets all of them.

    Args:
        defaults: inputs for which the network has a value if a job gives none.
    """

    def __init__(
        self, inputs: Sequence[Port], outputs: Sequence[Port], defaults: Sequence[Port] = ()
    ) -> None:
        self._inputs = {port.name: _expected(port) for port in (*inputs, *defaults)}
        self._required = tuple(port.name for port in inputs if not port.optional)
        self._outputs = dict.fromkeys(port.name for port in outputs)
        self._batched = next(
            (p.name for p in inputs if p.shape and not isinstance(p.shape[0], int)), None
        )

    def __call__(self, job: Job) -> None:
        """Checks a job.

        Raises:
            InvalidArgument: an input or output is wrong. The message names the first such.
        """
        for name, value in job.inputs.items():
            expected = self._inputs.get(name)
            if expected is None:
                raise InvalidArgument(
                    f"the network has no input {name!r}{did_you_mean(name, self._inputs)}",
                    field=f"inputs[{name!r}]",
                )
            if (
                type(value) is np.ndarray
                and value.shape == expected.shape
                and value.dtype == expected.dtype
            ):
                continue  # most values match exactly, and need no call
            if not expected.fits(value):
                raise expected.explain(value)
        if len(job.inputs) < len(self._inputs):
            for name in self._required:
                if name not in job.inputs:
                    raise InvalidArgument(
                        f"input {name!r} is missing: {self._inputs[name]}",
                        field=f"inputs[{name!r}]",
                    )
        if not job.output_names:
            job.output_names = tuple(self._outputs)
        else:
            self._check_outputs(job.output_names)

    def batch_size(self, job: Job) -> int:
        """The job's number of rows; 1 if the network's first dimension is fixed."""
        value = job.inputs.get(self._batched) if self._batched is not None else None
        return value.shape[0] if isinstance(value, np.ndarray) and value.shape else 1

    def _check_outputs(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self._outputs:
                raise InvalidArgument(
                    f"the network has no output {name!r}{did_you_mean(name, self._outputs)}",
                    field=f"outputs[{name!r}]",
                )
        if len(set(names)) < len(names):
            raise InvalidArgument("an output is named twice", field="outputs")


class _Expected:
    """What one tensor takes. `str` gives its type for messages, for example `float32[n, 16]`.

    Attributes:
        shape: the only shape that the input takes; None if it may take others, or no tensor.
    """

    __slots__ = ("_fixed", "_optional", "_port", "_rank", "_sequence", "dtype", "shape")

    def __init__(self, port: Port) -> None:
        self._port = port
        self._optional = port.optional
        self._sequence = port.kind == "sequence"
        self.dtype = port.dtype.numpy()
        self._rank = None if port.shape is None else len(port.shape)
        self._fixed = tuple(
            (axis, size) for axis, size in enumerate(port.shape or ()) if isinstance(size, int)
        )
        plain = not (self._optional or self._sequence)
        self.shape = port.shape if plain and len(self._fixed) == self._rank else None

    def __str__(self) -> str:
        port = self._port
        shape = "" if port.shape is None else _shape(port.shape)
        kind = {"tensor": "", "sequence": "sequence of "}[port.kind]
        return f"{'optional ' if port.optional else ''}{kind}{_name(self.dtype)}{shape}"

    def explain(self, value: Value) -> InvalidArgument:
        """The error for a value that does not fit."""
        name = self._port.name
        what, field = f"input {name!r}", f"inputs[{name!r}]"
        if value is None:
            return InvalidArgument(f"{what} must be given: it is {self}", field=field)
        in_sequence = False
        if self._sequence and isinstance(value, list):
            in_sequence = True
            index, value = next(
                (index, element)
                for index, element in enumerate(value)
                if not _Expected.fits(self, element)
            )
            what, field = f"element {index} of {what}", f"{field}[{index}]"
        if not isinstance(value, np.ndarray) or self._sequence != in_sequence:
            return InvalidArgument(f"{what} takes {self}, not {_kind(value)}", field=field)
        if value.dtype != self.dtype:
            # Preprocessing converts plain tensors as Cast does, but no strings or complex numbers.
            plain = not (self._optional or self._sequence)
            converts = plain and not {self.dtype.kind, value.dtype.kind} & {"O", "c"}
            remedy = ", or set its dtype when the network is loaded" if converts else ""
            return InvalidArgument(
                f"{what} takes {self}, not {_name(value.dtype)}; convert it first{remedy}",
                field=f"{field}.dtype",
            )
        return InvalidArgument(
            f"{what} takes {self}, not shape {list(value.shape)}", field=f"{field}.shape"
        )

    def fits(self, value: Value) -> bool:
        if not isinstance(value, np.ndarray) or value.dtype != self.dtype:
            return False
        shape = value.shape
        if self._rank is not None and len(shape) != self._rank:
            return False
        for axis, size in self._fixed:  # noqa: SIM110 - twice as fast as all() in every request
            if shape[axis] != size:
                return False
        return True


class _ExpectedMore(_Expected):
    """What an optional input or a sequence takes."""

    __slots__ = ()

    def fits(self, value: Value) -> bool:
        if isinstance(value, list):
            return self._sequence and all(map(super().fits, value))
        if value is None:
            return self._optional
        return not self._sequence and super().fits(value)


def _expected(port: Port) -> _Expected:
    plain = port.kind == "tensor" and not port.optional
    return _Expected(port) if plain else _ExpectedMore(port)


def _kind(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return "a tensor"
    return "a sequence" if isinstance(value, list) else type(value).__name__


def _name(dtype: np.dtype[Any]) -> str:
    return "string" if dtype.kind == "O" else dtype.name


def _shape(shape: tuple[int | str | None, ...]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
