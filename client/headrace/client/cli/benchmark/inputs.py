"""Random values for a network's inputs, for users without inputs of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from headrace.client.errors import invalid
from headrace.client.info import Port, Ports
from headrace.wire import dtypes
from headrace.wire.codec import Array

MOST_BYTES: Final = 1 << 30


def random_inputs(
    ports: Ports,
    shapes: Mapping[str, tuple[int, ...]],
    given: Mapping[str, Array],
    random: np.random.Generator,
) -> dict[str, Array]:
    """One request's inputs.

    Args:
        shapes: the shapes of inputs whose sizes are not fixed. Without a shape, a first size that
            is open is 1.
        given: inputs that need no random values.

    Raises:
        InvalidArgument: an input of open size has no shape, or its type cannot be random.
    """
    return {
        port.name: given[port.name] if port.name in given else _values(port, shapes, random)
        for port in ports
        if port.name in given or not port.optional
    }


def _values(
    port: Port, shapes: Mapping[str, tuple[int, ...]], random: np.random.Generator
) -> Array:
    field = f"inputs[{port.name!r}]"
    if port.kind != "tensor" or port.dtype == "unknown":
        raise invalid(field, f"input {port.name} is not a tensor of a known type; pass --input")
    shape = _shape(port, shapes.get(port.name))
    dtype: np.dtype[Any] = dtypes.numpy_type(dtypes.parse_name(port.dtype))
    if int(np.prod(shape)) * dtype.itemsize > MOST_BYTES:
        raise invalid(field, f"input {port.name} of shape {shape} has more than {MOST_BYTES} bytes")
    if dtype.kind == "O":
        return np.array(random.choice(["headrace", "stream", ""], shape), object)
    if dtype.kind in "iub":
        return random.integers(0, 2, shape).astype(dtype)  # may be an index into a short axis
    return np.asarray(random.standard_normal(shape)).astype(dtype)


def _shape(port: Port, given: tuple[int, ...] | None) -> tuple[int, ...]:
    if given is not None:
        return given
    first = [1 if not isinstance(size, int) else size for size in (port.shape or ())[:1]]
    rest = [size for size in (port.shape or ())[1:] if isinstance(size, int)]
    if port.shape is None or len(first) + len(rest) < len(port.shape):
        sizes = "" if port.shape is None else ",".join(str(size or "?") for size in port.shape)
        raise invalid(
            f"inputs[{port.name!r}]",
            f"input {port.name}[{sizes}] has sizes that are not fixed; pass --shape "
            f"{port.name}=1,2,3, or --input",
        )
    return (*first, *rest)
