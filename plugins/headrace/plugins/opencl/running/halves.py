"""Supports float16 on a device without it. The device computes networks in float32, and the host
converts their inputs and outputs. The casts at the edges of a network then have nothing to do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir


def is_edge(node: ir.Node) -> bool:
    """Whether a node casts an input of the network from float16 to float32, or casts a value from
    float32 to float16 and its result is only an output of the network."""
    if node.op_type != "Cast" or node.domain not in ("", "ai.onnx"):
        return False
    (given,), (made,) = node.inputs, node.outputs
    if given is None:
        return False
    widens = given.dtype == ir.DataType.FLOAT16 and made.dtype == ir.DataType.FLOAT
    narrows = given.dtype == ir.DataType.FLOAT and made.dtype == ir.DataType.FLOAT16
    at_end = made.is_graph_output() and not made.uses()
    return (widens and given.is_graph_input()) or (narrows and at_end)


def widened(value: Any) -> Any:
    """Converts arrays of float16 to float32, also inside lists. Anything else stays unchanged."""
    return _converted(value, np.float16, np.float32)


def narrowed(value: Any) -> Any:
    """Converts arrays of float32 to float16, also inside lists. Anything else stays unchanged."""
    return _converted(value, np.float32, np.float16)


def _converted(value: Any, old: type[np.generic], new: type[np.generic]) -> Any:
    if isinstance(value, list):
        return [_converted(element, old, new) for element in value]
    if not isinstance(value, np.ndarray) or value.dtype != old:
        return value
    with np.errstate(over="ignore"):
        return value.astype(new)
