"""A network's states: which tensors they are, their values when a sequence begins, and the values
that go from one request to the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from headrace.runtime.config.key import config_field
from headrace.runtime.errors import FailedPrecondition, InvalidArgument, did_you_mean
from headrace.runtime.network.network import Dimension, Port
from headrace.runtime.network.values import Array, Value
from headrace.runtime.sequences.keys import ROWS, STATES, Declaration, declarations

Sizes: TypeAlias = tuple[int, ...]
"""The sizes of the axes that the first request of a sequence decides, for example the batch."""

_SIZES_KEPT = 64
_FIELD = config_field(STATES.name)
_NO_STATES = (ir.DataType.STRING, ir.DataType.UNDEFINED)


@dataclass(frozen=True, slots=True)
class _Source:
    """An axis of a client's input that decides a size."""

    name: str
    axis: int


@dataclass(frozen=True, slots=True)
class _State:
    """A state of a network.

    Attributes:
        shape: the size of each axis, or its source if a sequence's first request decides it.
        initial: what each element begins with.
    """

    input: str
    output: str
    dtype: np.dtype[Any]
    shape: tuple[int | _Source, ...]
    initial: Array


_Sized: TypeAlias = tuple[tuple[_State, tuple[int, ...]], ...]
"""All states, each with the shape that it has in a sequence."""


class States:
    """The checked states that STATES names for a network. Immutable.

    Args:
        text: the value of the key.
        inputs, outputs: all inputs and outputs of the network.
        preprocessed: the names of the inputs and outputs that the caller has options for.

    Attributes:
        outputs_by_input: the states.
        inputs, outputs: the inputs and outputs that are left for the client.

    Raises:
        InvalidArgument: a tensor cannot be a state. The error names the key and the first such
            tensor.
    """

    def __init__(
        self,
        text: str,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        preprocessed: Iterable[str] = (),
    ) -> None:
        states = declarations(text)
        kept_inputs = _ports("input", [state.input for state in states], inputs)
        kept_outputs = _ports("output", [state.output for state in states], outputs)
        for name in preprocessed:
            if name in kept_inputs or name in kept_outputs:
                raise _refusal(f"{name!r} is a state, so it can have no options; leave them out")
        self.outputs_by_input = {state.input: state.output for state in states}
        self.inputs = tuple(port for port in inputs if port.name not in kept_inputs)
        self.outputs = tuple(port for port in outputs if port.name not in kept_outputs)
        self._states = tuple(
            self._state(state, kept_inputs[state.input], kept_outputs[state.output])
            for state in states
        )
        sources = {size: None for state in self._states for size in state.shape}
        self._sources = tuple(size for size in sources if isinstance(size, _Source))
        self.output_names = tuple(state.output for state in self._states)
        self._sized: Callable[[Sizes], _Sized] = lru_cache(_SIZES_KEPT)(self._shapes)

    def sizes(self, inputs: Mapping[str, Value]) -> Sizes:
        """The sizes that a request has. Its inputs have been checked."""
        sizes = []
        for source in self._sources:
            value = inputs[source.name]
            assert isinstance(value, np.ndarray)
            sizes.append(value.shape[source.axis])
        return tuple(sizes)

    def check_sizes(self, sequence: str, began: Sizes, sizes: Sizes) -> None:
        """Checks that a request has the sizes that its sequence began with.

        Raises:
            InvalidArgument: the sizes differ.
        """
        for source, was, now in zip(self._sources, began, sizes, strict=True):
            if was != now:
                raise InvalidArgument(
                    f"axis {source.axis} of input {source.name!r} has the size {now}, but sequence "
                    f"{sequence!r} began with {was}, and its states have that size; begin another "
                    "sequence",
                    field=f"inputs[{source.name!r}].shape",
                )

    def size_bytes(self, sizes: Sizes) -> int:
        """The bytes that the states of one sequence take."""
        return sum(state.dtype.itemsize * math.prod(shape) for state, shape in self._sized(sizes))

    def initial(self, sizes: Sizes) -> dict[str, Array]:
        """The values that a sequence begins with, by input."""
        return {
            state.input: np.full(shape, state.initial)
            if state.initial
            else np.zeros(shape, state.dtype)
            for state, shape in self._sized(sizes)
        }

    def take(self, outputs: dict[str, Value], sizes: Sizes) -> dict[str, Array]:
        """Takes the states' next values out of a request's outputs.

        Raises:
            FailedPrecondition: a value has another type or shape than its input.
        """
        taken = {}
        for state, shape in self._sized(sizes):
            value = outputs.pop(state.output)
            if not (
                isinstance(value, np.ndarray)
                and value.dtype == state.dtype
                and value.shape == shape
            ):
                raise FailedPrecondition(
                    f"output {state.output!r} came as {_shown(value)}, which cannot be the next "
                    f"value of input {state.input!r}, {state.dtype.name}{list(shape)}; "
                    f"correct {STATES.name} or the model"
                )
            taken[state.input] = kept(value)
        return taken

    def _shapes(self, sizes: Sizes) -> _Sized:
        given = dict(zip(self._sources, sizes, strict=True))
        return tuple(
            (state, tuple(size if isinstance(size, int) else given[size] for size in state.shape))
            for state in self._states
        )

    def _state(self, said: Declaration, port: Port, output: Port) -> _State:
        for kind, end in (("input", port), ("output", output)):
            if end.kind != "tensor" or end.optional or end.dtype in _NO_STATES:
                raise _refusal(f"{kind} {end.name!r} is not a tensor of numbers")
        if port.dtype != output.dtype:
            raise _refusal(
                f"output {output.name!r} is {_dtype(output)} and input {port.name!r} "
                f"{_dtype(port)}; they must have one type"
            )
        sizes = _shape_of(port, said)
        if output.shape is not None:
            fit = len(output.shape) == len(sizes) and all(
                one == other or not (isinstance(one, int) and isinstance(other, int))
                for one, other in zip(sizes, output.shape, strict=True)
            )
            if not fit:
                raise _refusal(
                    f"output {output.name!r} has the shape {_shape(output)} and input "
                    f"{port.name!r} {_shape(port)}; they must be the same"
                )
        shape = tuple(self._size(sizes, axis, said) for axis in range(len(sizes)))
        initial = _initial(said, port.dtype)
        return _State(port.name, output.name, initial.dtype, shape, initial)

    def _size(self, sizes: tuple[Dimension, ...], axis: int, said: Declaration) -> int | _Source:
        size = sizes[axis]
        if isinstance(size, int):
            return size
        is_rows = said.shape is not None and said.shape[axis] == ROWS
        for port in self.inputs:
            if port.kind == "tensor" and not port.optional and port.shape:
                if size is not None and not is_rows and size in port.shape:
                    return _Source(port.name, port.shape.index(size))
                is_batch = is_rows or (size is None and axis == 0)
                if is_batch and not isinstance(port.shape[0], int):
                    return _Source(port.name, 0)
        named = size is not None and not is_rows
        form = "x".join("SIZE" if at == axis else "?" for at in range(len(sizes)))
        raise _refusal(
            f"axis {axis} of input {said.input!r} has no fixed size, and no input of the client's "
            f"has {'an axis of that name' if named else 'a batch'}; give it one: "
            f"{said.input}={said.output}={form}"
        )


def _shape_of(port: Port, said: Declaration) -> tuple[Dimension, ...]:
    """The shape that the model declares, with the sizes that the key gives.

    Raises:
        InvalidArgument: no shape is known, or the key and the model contradict each other.
    """
    if said.shape is None:
        if port.shape is None:
            raise _refusal(
                f"input {port.name!r} has no known shape; give it one, such as "
                f"{port.name}={said.output}=1x128"
            )
        return port.shape
    declared = port.shape if port.shape is not None else (None,) * len(said.shape)
    if len(declared) != len(said.shape) or any(
        isinstance(theirs, int) and mine not in (None, theirs)
        for mine, theirs in zip(said.shape, declared, strict=True)
    ):
        sizes = "x".join("?" if size is None else str(size) for size in said.shape)
        raise _refusal(f"input {port.name!r} has the shape {_shape(port)}, which {sizes} is not")
    return tuple(
        mine if isinstance(mine, int) else theirs
        for mine, theirs in zip(said.shape, declared, strict=True)
    )


def _initial(said: Declaration, kind: ir.DataType) -> Array:
    """
    Raises:
        InvalidArgument: the type does not have the value.
    """
    text, dtype = said.initial or "0", kind.numpy()
    with suppress(ValueError, OverflowError), np.errstate(over="ignore", invalid="ignore"):
        if kind.is_floating_point() or dtype.kind == "c":
            real = float(text)
            value = np.array(real).astype(dtype)
            if (math.isnan(real), math.isinf(real)) == (np.isnan(value), np.isinf(value)):
                return value
        else:
            value = np.array(int(text)).astype(dtype)
            if int(value) == int(text):
                return value
    raise _refusal(f"input {said.input!r} is {dtype.name}, which has no {text}")


def kept(array: Array) -> Array:
    """The array, or a copy if the array would keep more than twice its own memory alive. It does if
    it is a part of a message, or of memory that a worker process maps too."""
    if array.base is None and array.flags.c_contiguous:
        return array
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    size = root.nbytes
    if root.base is not None:
        with suppress(TypeError):  # the object that it views may not say its size
            size = max(size, memoryview(root.base).nbytes)
    return array if size <= 2 * array.nbytes and array.flags.c_contiguous else array.copy()


def _ports(kind: str, names: Sequence[str], ports: Sequence[Port]) -> dict[str, Port]:
    known = {port.name: port for port in ports}
    found: dict[str, Port] = {}
    for name in names:
        shown = name[:200]
        if name not in known:
            raise _refusal(f"the network has no {kind} {shown!r}{did_you_mean(shown, known)}")
        if name in found:
            raise _refusal(f"names {kind} {shown!r} twice")
        found[name] = known[name]
    return found


def _refusal(why: str) -> InvalidArgument:
    return InvalidArgument(f"{STATES.name}: {why}", field=_FIELD)


def _dtype(port: Port) -> str:
    return port.dtype.numpy().name


def _shape(port: Port) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in port.shape or ())}]"


def _shown(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{list(value.shape)}"
    return "a sequence" if isinstance(value, list) else "nothing"
