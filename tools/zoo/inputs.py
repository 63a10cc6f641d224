"""Inputs for any network, made from what its ports declare and from hints where that is not enough.

Every axis without a size gets one by its symbol, so that axes of one symbol agree. An axis without
a symbol has the name of its place, as ``input.0``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

Array: TypeAlias = "np.ndarray[Any, Any]"
Sizes: TypeAlias = Mapping[str, int]
Maker: TypeAlias = Callable[[np.random.Generator, tuple[int, ...], Sizes], Array]

BATCHES = (1, 2)
LENGTHS = (16, 24)


@dataclass(frozen=True, slots=True)
class Port:
    """An input: its name, type, and the size or the symbol of each axis."""

    name: str
    dtype: np.dtype[Any]
    axes: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Hint:
    """What a network takes and its ports do not say.

    Attributes:
        sizes: of a symbol in each case; the last one stands for all that follow.
        values: what makes the values of an input.
    """

    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    values: Mapping[str, Maker] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The inputs of one request, by name, and the sizes that they were made with."""

    sizes: Sizes
    arrays: Mapping[str, Array]

    @property
    def is_smallest(self) -> bool:
        """Whether every free axis has one element, which few networks are made for."""
        return bool(self.sizes) and set(self.sizes.values()) == {1}

    def __str__(self) -> str:
        return ", ".join(f"{symbol}={size}" for symbol, size in self.sizes.items()) or "fixed"


def ports(path: Path) -> tuple[Port, ...]:
    """What the network in the file takes; initialisers with an input's name are defaults.

    Raises:
        ValueError: an input is not a tensor.
    """
    graph = onnx.load(path, load_external_data=False).graph
    defaults = {tensor.name for tensor in graph.initializer}
    return tuple(_port(value) for value in graph.input if value.name not in defaults)


def _port(value: onnx.ValueInfoProto) -> Port:
    if value.type.WhichOneof("value") != "tensor_type":
        raise ValueError(f"input {value.name!r} is not a tensor")
    tensor = value.type.tensor_type
    axes = tuple(
        axis.dim_value
        if axis.HasField("dim_value") and axis.dim_value >= 0
        else axis.dim_param.strip("?") or f"{value.name}.{position}"  # "?" is no symbol
        for position, axis in enumerate(tensor.shape.dim)
    )
    return Port(value.name, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type), axes)


def generate(takes: Sequence[Port], hint: Hint, seed: int) -> list[Inputs]:
    """The requests that a network is asked: some of the usual sizes, and the smallest one.

    The same arguments give the same values.
    """
    return [
        _inputs(takes, hint, sizes, np.random.default_rng([seed, index]))
        for index, sizes in enumerate(all_sizes(takes, hint))
    ]


def all_sizes(takes: Sequence[Port], hint: Hint) -> list[Sizes]:
    """The sizes of the free axes in each request; no axis is empty."""
    free = [(place, axis) for port in takes for place, axis in enumerate(port.axes)]
    batches = {axis for place, axis in free if place == 0}
    choices = {
        axis: tuple(hint.sizes.get(axis, BATCHES if axis in batches else LENGTHS))
        for _, axis in free
        if isinstance(axis, str)
    }
    count = max((len(each) for each in choices.values()), default=1)
    usual: list[Sizes] = [
        {symbol: each[min(index, len(each) - 1)] for symbol, each in choices.items()}
        for index in range(count)
    ]
    smallest: Sizes = dict.fromkeys(choices, 1)
    return usual if smallest in usual else [*usual, smallest]


def _inputs(takes: Sequence[Port], hint: Hint, sizes: Sizes, random: np.random.Generator) -> Inputs:
    arrays = {}
    for port in takes:
        shape = tuple(sizes[axis] if isinstance(axis, str) else axis for axis in port.axes)
        make = hint.values.get(port.name) or _maker(port.dtype)
        arrays[port.name] = np.asarray(make(random, shape, sizes), port.dtype).reshape(shape)
    return Inputs(sizes, arrays)


# ---- values ----


def noise(random: np.random.Generator, shape: tuple[int, ...], _: Sizes) -> Array:
    """Numbers between -1 and 1, as sound and pictures have them."""
    return random.uniform(-1.0, 1.0, shape)


def picture(random: np.random.Generator, shape: tuple[int, ...], _: Sizes) -> Array:
    """Dark bars of any size on white: what finders of text and of things answer to."""
    pixels = np.ones(shape)
    height, width = shape[-2:]
    for _bar in range(12):
        top, left = random.integers(0, height), random.integers(0, width)
        tall, wide = random.integers(1, height // 4 + 2), random.integers(1, width // 8 + 2)
        pixels[..., top : top + tall, left : left + wide] = random.uniform(-1.0, 0.0)
    return pixels


def below(bound: int) -> Maker:
    """Whole numbers from 0 on, as tokens are numbered."""
    return lambda random, shape, _: random.integers(0, bound, shape)


def small(random: np.random.Generator, shape: tuple[int, ...], _: Sizes) -> Array:
    """Numbers between -0.1 and 0.1, as embeddings have them."""
    return random.uniform(-0.1, 0.1, shape)


def always(value: float) -> Maker:
    return lambda random, shape, _: np.full(shape, value)


def lengths_of(symbol: str) -> Maker:
    """How much of an axis each row uses: all of it, then less and less."""

    def make(_: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        return np.maximum(1, sizes[symbol] * (4 - np.arange(shape[0]) % 4) // 4)

    return make


def all_but_the_end(_: np.random.Generator, shape: tuple[int, ...], __: Sizes) -> Array:
    """A mask that leaves a quarter out, at the end of the last axis."""
    kept = shape[-1] - shape[-1] // 4
    return np.broadcast_to(np.arange(shape[-1]) < kept, shape)


def _maker(dtype: np.dtype[Any]) -> Maker:
    if dtype.kind == "f":
        return noise
    if dtype.kind == "b":
        return all_but_the_end
    if dtype.kind in "iu":
        return below(16)
    return lambda random, shape, _: np.full(shape, "text")
