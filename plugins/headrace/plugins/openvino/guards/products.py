"""Conditions on the shapes of products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.guards.integers import in_floats
from headrace.plugins.openvino.guards.terms import (
    Condition,
    is_constant,
    is_known,
    keep_fitting,
    keep_length,
    same,
    sizes_along,
)
from headrace.plugins.openvino.library import openvino, operations


def _product(operation: openvino.Node) -> Iterator[Condition]:
    """With constant weights, the kernel does not compare the number of columns with theirs. It
    would read beyond rows that are too short, so it gets rows of the right length. Neither does the
    kernel of two products with a softmax between them, if one of the numbers is 1."""
    yield from in_floats(operation)
    first, second = operation.input_values()
    shape, weights = first.get_partial_shape(), second.get_partial_shape()
    if shape.rank.is_dynamic or weights.rank.is_dynamic or min(len(shape), len(weights)) < 2:
        return
    turned = operation.get_attributes()
    columns, rows = -2 if turned["transpose_a"] else -1, -1 if turned["transpose_b"] else -2
    if is_known(first, columns) and is_known(second, rows):
        return
    ((fits, broken),) = same(first, columns, second, rows)
    yield fits, broken
    if is_constant(second) and weights.is_static:
        if length := weights[rows].get_length():
            keep_length(operation, columns, length)
        return
    made = operation.output(0)
    free = [at for at in range(len(made.get_partial_shape())) if not is_known(made, at)]
    if free:  # a layer that reads a product's shape keeps it out of that kernel
        yield operations.maximum(sizes_along(made, free[:1]), np.int64(1)), broken
    else:
        keep_fitting(operation.input(1), fits)


PRODUCTS: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {"MatMul": _product}
)
