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
SOFTMAX_OF_ROWS: Final = "Softmax-11"
"""The name of a Softmax of these operator sets."""


def _reduce(node: ir.Node, version: int) -> str | None:
    """Since operator set 18, axes are an input."""
    if version >= _REDUCED_SINCE and "axes" in node.attributes:
        return "OpenVINO ignores axes that are an attribute, and reduces all axes"
    return None


def _softmax(node: ir.Node, version: int) -> str | None:
    """Before operator set 13, a tensor was a matrix, whose rows go from `axis` to the end. Where
    the rank is not known, OpenVINO may know it: `conditions`."""
    sizes = sizes_of(input_of(node, 0))
    return None if sizes is None else _of_rows(node, version, len(sizes))


def unknown_in_body(node: ir.Node, version: int) -> str | None:
    """Why a layer of a body is refused if no rank is known. `conditions` do not know its set."""
    if node.op_type != "Softmax" or node.domain not in ("", "ai.onnx"):
        return None
    return None if sizes_of(input_of(node, 0)) is not None else _of_rows(node, version, None)


def _of_rows(node: ir.Node, version: int, rank: int | None) -> str | None:
    last = -1 if rank is None else rank - 1
    if version in _SOFTMAX_OF_ROWS and node.attributes.get_int("axis", 1) not in (-1, last):
        return "OpenVINO computes a Softmax of operator set 11 along one axis alone"
    return None


def kind(node: ir.Node, version: int) -> str:
    """The operator's name, or that of its older form, which `conditions` knows."""
    rows = node.op_type == "Softmax" and version in _SOFTMAX_OF_ROWS
    return SOFTMAX_OF_ROWS if rows else node.op_type


OLDER: Final[Mapping[str, Callable[[ir.Node, int], str | None]]] = MappingProxyType(
    {
        **dict.fromkeys(("ReduceL1", "ReduceLogSum", "ReduceLogSumExp"), _reduce),
        "Softmax": _softmax,
    }
)
