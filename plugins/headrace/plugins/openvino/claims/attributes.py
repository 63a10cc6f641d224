"""Limits on attributes, types and sizes that the list of claims does not tell apart.

They exclude layers that OpenVINO computes right with most values, and wrongly or not at all with
some, so that neither a trial of `make claims` nor a comparison of a few answers need find it.
`make claims` counts no layer that a limit excludes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import onnx_ir as ir

from headrace.plugins.openvino.sizes import holds_sizes
from headrace.runtime.intake.naming import bodies
from headrace.runtime.network.constants import const_tensor

IsFixed: TypeAlias = Callable[[ir.Value], bool]
"""Whether a value is the same in every run."""
Limit: TypeAlias = Callable[[ir.Node, int, IsFixed], "str | None"]

_LAST_AXIS_ALONE: Final = 13
"""Before this set, a Softmax joins all axes from its own on."""
_NO_CROP: Final = ("Resize", 1)
_WITHOUT_ARITHMETIC: Final = ("Shape", "Size")


def is_constant(value: ir.Value) -> bool:
    """Whether the value is an initialiser or a Constant."""
    return const_tensor(value) is not None


def limit(node: ir.Node, since: int, is_fixed: IsFixed = is_constant) -> str | None:
    """Why a layer is not claimed with these attributes, types and sizes. None if they are no
    reason.

    Args:
        node: a layer with all types and ranks known.
        since: the operator set in which ONNX last changed the operator.
        is_fixed: tells constants.
    """
    general = _body(node) or _empty(node) or _doubles(node, is_fixed)
    return general or limit_of_operator(node, since, is_fixed)


def limit_of_operator(node: ir.Node, since: int, is_fixed: IsFixed) -> str | None:
    """As `limit`, without what holds only for layers that are computed in each run."""
    if (reason := _empty_constant(node)) is not None:
        return reason
    found = _LIMITS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    return found(node, since, is_fixed) if found is not None else None


def _body(node: ir.Node) -> str | None:
    """OpenVINO gives memory of the results of a branch or loop to other values, too, where their
    sizes are not known before a run, and then answers with memory of other requests."""
    if any(bodies(node)):
        return "OpenVINO gives memory of the results of branches and loops to other values too"
    return None


def _empty(node: ir.Node) -> str | None:
    """OpenVINO skips some layers without elements, and gives others memory that nobody wrote."""
    for value in (*node.inputs, *node.outputs):
        if value is None or value.shape is None or is_constant(value):
            continue
        if 0 in value.shape:
            return f"layers without elements are not claimed, as in {value.name!r}"
    return None


def _empty_constant(node: ir.Node) -> str | None:
    """OpenVINO takes an initialiser without elements for a scalar, whose element is nowhere: it
    ends the process where it computes with it. Lists of axes and of sizes may be empty, and the
    crop of a Resize is, where nothing is cropped."""
    for at, value in enumerate(node.inputs):
        if value is None or holds_sizes(node, at) or (node.op_type, at) == _NO_CROP:
            continue
        tensor = const_tensor(value)
        if tensor is not None and not tensor.size:
            return f"constants without elements are not claimed, as {value.name!r}"
    return None


def _doubles(node: ir.Node, is_fixed: IsFixed) -> str | None:
    """float64 is computed in float32, which only shows where the numbers have more digits."""
    if node.op_type in _WITHOUT_ARITHMETIC:
        return None
    casts = node.op_type in ("Cast", "CastLike")
    inputs = (value for value in node.inputs if value is not None)
    values = [value for value in inputs if not (casts and is_fixed(value))]
    if any(value.dtype == ir.DataType.DOUBLE for value in (*values, *node.outputs)):
        return "OpenVINO computes float64 in float32"
    return None


def _of_last_axis(node: ir.Node, since: int, _: IsFixed) -> str | None:
    data = _input_of(node, 0)
    rank = len(data.shape) if data is not None and data.shape is not None else 0
    axis = node.attributes.get_int("axis", 1)
    if since >= _LAST_AXIS_ALONE or axis in (-1, rank - 1):
        return None
    return f"{node.op_type} of set {since} is claimed along the last axis alone"


def _coupled_gates(node: ir.Node, _: int, __: IsFixed) -> str | None:
    """OpenVINO refuses some of these and computes others as if the gates were not coupled."""
    if node.attributes.get_int("input_forget", 0):
        return "OpenVINO does not couple the input and forget gates"
    return None


def _dynamic_quantize(_: ir.Node, __: int, ___: IsFixed) -> str:
    return "OpenVINO rounds some ties to the wrong integer"


def _quantize(node: ir.Node, _: int, is_fixed: IsFixed) -> str | None:
    """If the scale is given, a tie that is rounded the wrong way costs no more accuracy than
    quantisation itself."""
    scale = _input_of(node, 1)
    if scale is None or scale.is_graph_input() or is_fixed(scale):
        return None
    return "with a computed scale, OpenVINO rounds some ties to the wrong integer"


def _short_vectors(_: ir.Node, __: int, ___: IsFixed) -> str:
    """It adds 1e-7 below the root or to the sum: that is 3 % of a length of 1e-3."""
    return "OpenVINO makes short vectors shorter than they should be"


def _prelu(node: ir.Node, _: int, is_fixed: IsFixed) -> str | None:
    """If both are constants and do not fit each other, the process ends."""
    values = [_input_of(node, at) for at in range(2)]
    if all(value is not None and is_fixed(value) for value in values):
        return "the data and the slopes are constants"
    return None


def _input_of(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


_LIMITS: Final[Mapping[str, Limit]] = MappingProxyType(
    {
        **dict.fromkeys(["Hardmax", "LogSoftmax", "Softmax"], _of_last_axis),
        "DynamicQuantizeLinear": _dynamic_quantize,
        "LSTM": _coupled_gates,
        "LpNormalization": _short_vectors,
        "PRelu": _prelu,
        "QuantizeLinear": _quantize,
    }
)
