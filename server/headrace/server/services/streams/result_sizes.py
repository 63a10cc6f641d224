"""How large results will be, so that a stream reserves room for them before they are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.runtime.errors import HeadraceError
from headrace.runtime.network.network import Port
from headrace.server.access.networks import Networks

Shapes: TypeAlias = Callable[[], Mapping[str, Sequence[int]]]
"""Finds the shapes of a request's inputs, by name."""

_REPLY_BYTES: Final = 512
_OUTPUT_BYTES: Final = 256
"""What a reply takes beside its elements, and for each output."""
_GUESSED: Final = 1 / 128
"""The part of the streams' memory that a result of unknown size is taken for, until the first one
has come. A stream alone then has about seven such requests in flight."""
_MOST_NETWORKS: Final = 256
"""A stream remembers the results of so many networks. Callers choose names."""


class ExpectedSize(NamedTuple):
    """How large a result is expected to be.

    Attributes:
        size: bytes.
        sizes: learns from the result; None if the result is small for sure.
    """

    size: int
    sizes: ResultSizes | None

    def came(self, size: int) -> None:
        """Takes the bytes of the result."""
        if self.sizes is not None:
            self.sizes.saw(size, larger=size > self.size)


SMALL: Final = ExpectedSize(_REPLY_BYTES, None)
_new: Final = tuple.__new__  # makes a NamedTuple without a call of Python code


class NetworkResults:
    """The results of all networks that one stream asks. Belongs to the event loop's thread.

    Args:
        capacity: the bytes that all streams together may hold.
    """

    def __init__(self, networks: Networks, capacity: int) -> None:
        self._networks = networks
        self._guess = int(capacity * _GUESSED)
        self._sizes: dict[tuple[str, str], ResultSizes] = {}  # by name and version

    def expected(
        self, network: str, version: str, outputs: Sequence[str], shapes: Shapes
    ) -> ExpectedSize:
        """What to expect of a request.

        Args:
            outputs: those that it asks for; empty for all.
        """
        sizes = self._sizes.get((network, version)) or self._add(network, version)
        if sizes is None:
            return SMALL
        return _new(ExpectedSize, (sizes.expected(shapes, outputs), sizes))

    def _add(self, network: str, version: str) -> ResultSizes | None:
        """What the network's ports tell; None if it is not loaded. Requests that wait for its load
        have no results yet, and a guess would leave no room for those that have."""
        if len(self._sizes) >= _MOST_NETWORKS:
            self._sizes.clear()
        ports: tuple[Sequence[Port], Sequence[Port]] = (), ()
        with suppress(HeadraceError):  # another server has it, or the request fails
            executable = self._networks.find(network, version).executable
            if executable is None:
                return None
            ports = executable.inputs, executable.outputs
        sizes = self._sizes[network, version] = ResultSizes(*ports, self._guess)
        return sizes


class ResultSizes:
    """The sizes of one network's results on one stream. Belongs to the event loop's thread.

    An output's size is known if its declared shape is fixed, or if its symbols are dimensions of
    inputs too. If one is not known, the largest result so far counts, and before the first result
    a guess.

    Args:
        inputs, outputs: the network's ports.
        guess: bytes.
    """

    __slots__ = ("_fixed", "_guess", "_largest", "_outputs", "_symbols")

    def __init__(self, inputs: Sequence[Port], outputs: Sequence[Port], guess: int) -> None:
        self._guess = guess
        self._largest = 0
        self._symbols = {
            size: (port.name, axis)
            for port in inputs
            for axis, size in enumerate(port.shape or ())
            if isinstance(size, str)
        }
        self._outputs = {port.name: self._declared(port) for port in outputs}
        self._fixed = self._sum(tuple(self._outputs), dict) if outputs else None

    def expected(self, shapes: Shapes, names: Sequence[str]) -> int:
        """The bytes of a request's result.

        Args:
            names: of the outputs that it asks for; empty for all.
        """
        if not names and self._fixed is not None:
            return self._fixed
        known = self._sum(names or tuple(self._outputs), shapes) if self._outputs else None
        return known if known is not None else self._largest or self._guess

    def saw(self, size: int, *, larger: bool) -> None:
        """Takes the bytes of a result, and whether it was larger than expected."""
        self._largest = max(self._largest, size)
        if larger:  # what the outputs declare does not hold
            self._outputs, self._fixed = {}, None

    def _declared(self, port: Port) -> tuple[int, tuple[tuple[str, int], ...]] | None:
        """The bytes of an output without its symbols, and the dimensions of inputs that they are.
        None if its size does not follow from its declaration."""
        if port.shape is None or port.kind != "tensor" or port.dtype.is_string():
            return None
        free = [size for size in port.shape if not isinstance(size, int)]
        dimensions = [self._symbols.get(size) if size is not None else None for size in free]
        found = tuple(dimension for dimension in dimensions if dimension is not None)
        if len(found) < len(dimensions):
            return None
        sizes = [size for size in port.shape if isinstance(size, int)]
        return math.prod(sizes, start=port.dtype.numpy().itemsize), found

    def _sum(self, names: Sequence[str], shapes: Shapes) -> int | None:
        given: Mapping[str, Sequence[int]] | None = None
        total = _REPLY_BYTES
        for name in names:
            declared = self._outputs.get(name)
            if declared is None:
                return None
            size, symbols = declared
            if symbols and given is None:
                given = shapes()
            for source, axis in symbols:
                assert given is not None
                shape = given.get(source, ())
                if axis >= len(shape):
                    return None
                size *= shape[axis]
            total += max(size, 0) + _OUTPUT_BYTES + len(name)  # a request may say anything
        return total


def shapes_of(inputs: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    return {name: value.shape for name, value in inputs.items() if hasattr(value, "shape")}
