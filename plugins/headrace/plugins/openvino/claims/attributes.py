"""Limits on attributes and sizes of some operators, which the list of claims does not tell apart.

`make claims` tries no layer that a limit excludes, and reports layers that are computed wrongly and
that none excludes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.runtime.network.constants import const_tensor

Limit = Callable[[ir.Node, int], "str | None"]

_LAST_AXIS_ALONE: Final = 13
"""Before this set, a Softmax joins all axes from its own on."""


def limit(node: ir.Node, since: int) -> str | None:
    """Why a layer is not claimed with these attributes and sizes. None if they are no reason.

    Args:
        node: a layer with all types and sizes known.
        since: the operator set in which ONNX last changed the operator.
    """
    found = _LIMITS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    return _empty(node) or (found(node, since) if found is not None else None)


def _empty(node: ir.Node) -> str | None:
    """OpenVINO skips some layers without elements, and gives others memory that nobody wrote."""
    for value in (*node.inputs, *node.outputs):
        if value is None or value.shape is None or const_tensor(value) is not None:
            continue
        if 0 in value.shape.numpy():
            return f"OPENVINO does not claim layers without elements, as in {value.name!r}"
    return None


def _of_last_axis(node: ir.Node, since: int) -> str | None:
    data = node.inputs[0]
    rank = len(data.shape) if data is not None and data.shape is not None else 0
    axis = node.attributes.get_int("axis", 1)
    if since >= _LAST_AXIS_ALONE or axis in (-1, rank - 1):
        return None
    return f"OPENVINO claims {node.op_type} of set {since} along the last axis alone"


_LIMITS: Final[Mapping[str, Limit]] = MappingProxyType(
    dict.fromkeys(["Hardmax", "LogSoftmax", "Softmax"], _of_last_axis)
)
