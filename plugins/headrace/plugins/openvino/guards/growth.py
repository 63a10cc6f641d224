"""How large the results of operations on integers may be, computed from the sizes of their inputs:
numbers without signs in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.library import openvino, operations


def _steepest(
    operation: openvino.Node, values: openvino.Node, slopes: openvino.Node
) -> openvino.Node:
    axes = np.arange(slopes.get_output_partial_shape(0).rank.get_length())
    below = operations.relu(
        operations.negative(operations.convert(operation.input_value(0), "f32"))
    )
    return operations.maximum(
        values, operations.multiply(below, operations.reduce_max(slopes, axes))
    )


def _product(
    operation: openvino.Node, first: openvino.Node, second: openvino.Node
) -> openvino.Node:
    turned = operation.get_attributes()
    return operations.matmul(first, second, turned["transpose_a"], turned["transpose_b"])


def _sum(operation: openvino.Node, values: openvino.Node, _: openvino.Node) -> openvino.Node:
    return operations.reduce_sum(values, operation.input_value(1))


def _factors(operation: openvino.Node, values: openvino.Node, _: openvino.Node) -> openvino.Node:
    return operations.reduce_prod(values, operation.input_value(1))


def _squares(operation: openvino.Node, values: openvino.Node, _: openvino.Node) -> openvino.Node:
    return operations.reduce_sum(operations.multiply(values, values), operation.input_value(1))


def _added(most: openvino.Node, updates: openvino.Node) -> openvino.Node:
    return operations.add(most, operations.reduce_sum(updates, np.int64(0), keep_dims=True))


def _multiplied(most: openvino.Node, updates: openvino.Node) -> openvino.Node:
    factors = operations.maximum(updates, np.float32(1))
    return operations.multiply(most, operations.reduce_prod(factors, np.int64(0), keep_dims=True))


def _einstein(operation: openvino.Node, *values: openvino.Node) -> openvino.Node:
    return operations.einsum(list(values), operation.get_attributes()["equation"])


COMBINED: Final[Mapping[str, Callable[..., openvino.Node]]] = MappingProxyType(
    {
        "Abs": lambda _, value: value,
        "Add": lambda _, *values: operations.add(*values),
        "CumSum": _sum,
        "Einsum": _einstein,
        "MatMul": _product,
        "Multiply": lambda _, *values: operations.multiply(*values),
        "Negative": lambda _, value: value,  # the least integer has no opposite
        "PRelu": _steepest,
        "Power": lambda _, *values: operations.power(*values),
        "ReduceL1": _sum,
        "ReduceL2": _squares,
        "ReduceMean": _sum,
        "ReduceProd": _factors,
        "ReduceSum": _sum,
        "Subtract": lambda _, *values: operations.add(*values),
    }
)
"""The results of operations whose result may be larger than their largest input."""
UPDATES: Final[Mapping[str, Callable[..., openvino.Node]]] = MappingProxyType(
    {"sum": _added, "prod": _multiplied}
)
"""What ScatterElements and ScatterND do with the elements that they update, if that makes larger
ones."""
