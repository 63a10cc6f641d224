"""Conditions on the shapes of attention layers, and of the layers that turn their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.graph.fusion import layer_of
from headrace.plugins.openvino.guards.terms import (
    EMPTY,
    UNLIKE,
    Condition,
    all_hold,
    ancestors,
    is_known,
    keep_fitting,
    keep_length,
    same,
    sizes_along,
)
from headrace.plugins.openvino.library import openvino, operations

_HEADS: Final = 1
"""The axis of the heads."""


def _attention(operation: openvino.Node) -> Iterator[Condition]:
    """The kernel repeats a tensor along an axis of size 1. ONNX requires that both sizes are the
    same. Where it cannot repeat one, it reads outside of the keys or the values. So it gets none
    that do not fit."""
    query, key, value = (operation.input_value(index) for index in range(3))
    made = operation.output(0)
    fit = [*_alike(key, query, (0, -1)), *_alike(value, key, (0, 1, -2))]
    yield from ((each, UNLIKE) for each in fit)
    yield from ((each, UNLIKE) for each in _alike(made, query, (0, 1, -2)))  # of a larger mask
    if fit:
        keep_fitting(operation.input(1), reduce(operations.multiply, fit))


def _alike(
    one: openvino.Output, other: openvino.Output, axes: tuple[int, ...]
) -> Iterator[openvino.Node]:
    """Whether both have the same sizes along the axes, if they are not known to have them."""
    shape, beside = one.get_partial_shape(), other.get_partial_shape()
    free = [axis for axis in axes if shape[axis].is_dynamic or shape[axis] != beside[axis]]
    if free:
        yield all_hold(operations.equal(sizes_along(one, free), sizes_along(other, free)))


def _decomposed(operation: openvino.Node) -> Iterator[Condition]:
    """Conditions on an operation that the reader made for an Attention without a kernel. Its
    products and sums repeat any tensor along an axis of size 1. ONNX repeats only a mask, and keys
    and values with a single head."""
    if operation.get_type_name() == "Pad":
        yield from _mask(operation)
    if operation.get_type_name() not in ("Add", "MatMul"):
        return
    first, second = operation.input_values()
    product = _product(operation)
    if operation.get_type_name() == "MatMul":
        # ONNX does not say what comes of no keys. For keys of no elements, 0 is divided by 0.
        yield sizes_along(second, [-1 if operation.get_attributes()["transpose_b"] else -2]), EMPTY
        yield from same(first, 0, second, 0)
        if product is not None:
            yield from same(product.input_value(1), _HEADS, second, _HEADS)
        else:
            heads, keys = (sizes_along(each, [_HEADS]) for each in (first, second))
            one = operations.equal(keys, np.int64(1))
            yield all_hold(operations.logical_or(one, operations.equal(heads, keys))), UNLIKE
    elif product is not None:  # it adds a mask
        for at in range(len(first.get_partial_shape())):
            yield from same(operation.output(0), at, first, at)


def _mask(operation: openvino.Node) -> Iterator[Condition]:
    """The reader pads a mask that is narrower than the keys, as ONNX says. The same operation would
    cut off the columns of a mask that is wider than the keys."""
    added = operations.convert(operation.input_value(2), "i64")
    yield operations.add(added, np.int64(1)), "gets a mask that is wider than its keys"


def _product(operation: openvino.Node) -> openvino.Node | None:
    """The product of queries and keys that the operation's first input comes from."""
    layer = layer_of(operation.get_friendly_name())
    for each in ancestors(operation.input_value(0)):
        if each.get_type_name() == "MatMul" and layer_of(each.get_friendly_name()) == layer:
            return each
    return None


def _rotation(operation: openvino.Node) -> Iterator[Condition]:
    """Conditions on an operation that the reader made for a RotaryEmbedding. Its operations cut off
    the ends of rows of sines and cosines that are too long, and repeat them along axes of size 1.
    ONNX requires that all sizes are the same. Repeats along the axis of the heads are meant.

    One kernel replaces the operations. It writes outside of its memory if the rows of the data do
    not have the length that the split into halves expects, or are shorter than what it turns. So it
    gets rows of that length."""
    kind = operation.get_type_name()
    if kind == "Slice":
        rows, made = operation.input_value(0), operation.output(0)
        yield from same(rows, -1, made, -1)
    elif kind == "VariadicSplit":
        data, parts = operation.input_value(0), operation.outputs()
        if is_known(data, -1):
            return
        known = [part.get_partial_shape()[-1] for part in parts if is_known(part, -1)]
        length = sum(size.get_length() for size in known)
        if len(known) == len(parts):
            keep_length(operation, -1, length)
        else:  # what is turned, and the rest
            fits = all_hold(operations.greater_equal(sizes_along(data, [-1]), np.int64(length)))
            yield fits, UNLIKE
            keep_fitting(operation.input(0), fits)
    elif kind == "Multiply":
        yield from _turned(operation)


def _turned(operation: openvino.Node) -> Iterator[Condition]:
    """Conditions on a product of a half of the data with sines or cosines. The kernel that replaces
    it reads beyond the rows if the data has more of them. So the kernel gets only rows that fit."""
    half, port = operation.input_value(0), operation.input(1)
    spread = port.get_source_output().get_node()
    if any(each.get_node().get_type_name() == "Constant" for each in operation.input_values()):
        return
    if spread.get_type_name() == "Unsqueeze":  # along the heads, for both halves
        port = spread.input(0)
    rows = port.get_source_output()
    if rows.get_node().get_friendly_name() == port.get_node().get_friendly_name():
        return  # the other half was here before
    for fits in _alike(half, rows, (0, -2, -1)):
        yield fits, UNLIKE
        keep_fitting(port, fits)


ATTENTION: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {"ScaledDotProductAttention": _attention}
)
ATTENTION_LAYERS: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = (
    MappingProxyType({"Attention": _decomposed, "RotaryEmbedding": _rotation})
)
"""Conditions on each operation that was made for a layer of a type."""
