"""Layers of older operator sets, which OpenVINO reads as if they were of a newer one.

The cases of onnx are of the newest operator sets, so that none of them shows these faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.plugins.openvino.constants.values import input_of, sizes_of

_REDUCED_SINCE: Final = 13
_SOFTMAX_OF_ROWS: Final = (11, 12)


def _reduce(node: ir.Node, version: int) -> str | None:
    """Since operator set 18, axes are an input."""
    if version >= _REDUCED_SINCE and "axes" in node.attributes:
        return "OpenVINO ignores axes that are an attribute, and reduces all axes"
    return None


def _softmax(node: ir.Node, version: int) -> str | None:
    """Before operator set 13, a tensor was a matrix, whose rows go from `axis` to the end."""
    axis, sizes = node.attributes.get_int("axis", 1), sizes_of(input_of(node, 0))
    last = -1 if sizes is None else len(sizes) - 1
    if version in _SOFTMAX_OF_ROWS and axis not in (-1, last):
        return "OpenVINO computes a Softmax of operator set 11 along one axis alone"
    return None


OLDER: Final[Mapping[str, Callable[[ir.Node, int], str | None]]] = MappingProxyType(
    {
        **dict.fromkeys(("ReduceL1", "ReduceLogSum", "ReduceLogSumExp"), _reduce),
        "Softmax": _softmax,
    }
)
