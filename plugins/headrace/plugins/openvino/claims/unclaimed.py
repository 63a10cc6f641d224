"""Tells which layers of a network OPENVINO claims, and why it does not claim the others."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import ml_dtypes
import onnx_ir as ir

from headrace.plugins.openvino.claims.attributes import limit
from headrace.plugins.openvino.claims.forms import form_of
from headrace.plugins.openvino.claims.table import Claims
from headrace.runtime.intake.naming import walk
from headrace.runtime.network.constants import const_tensor

Bounds = Callable[[ir.Value], "int | None"]
"""Gives the largest magnitude that an integer value can have; None if it is not known."""

_LISTS: Final = {"CPU": "allowed"}


@cache
def claims_of(device: str) -> Claims:
    """The list of a device that OpenVINO finds, as ``CPU`` or ``GPU.0``. It is empty if there is no
    list of such devices: `make claims` makes one on a machine that has one."""
    kind = device.partition(".")[0]
    name = _LISTS.get(kind, f"allowed_{kind.lower()}")
    try:
        module = importlib.import_module(f"{__package__}.{name}")
    except ModuleNotFoundError:
        return Claims("")
    return Claims(module.ALLOWED)


def type_bound(value: ir.Value) -> int | None:
    """The bound that follows from a value's type, or from its contents if it is a constant."""
    tensor = const_tensor(value)
    if value.dtype is None or not value.dtype.is_integer():
        return None
    if tensor is not None:
        numbers = tensor.numpy().ravel()
        return max(abs(int(end)) for end in (numbers.min(), numbers.max())) if numbers.size else 0
    info: Any = ml_dtypes.iinfo(value.dtype.numpy())  # type: ignore[no-untyped-call]
    return max(-int(info.min), int(info.max))


def unclaimed(
    model: ir.Model, device: str = "CPU", bounds: Bounds = type_bound
) -> dict[ir.Node, str]:
    """The layers, also those in bodies, that OPENVINO does not claim, each with the reason.

    A layer whose results are constants is not judged: whoever compiles the network computes it
    before, and gives OpenVINO the results.

    Args:
        model: a transformed network with all functions inlined, and with all types and sizes that
            can be known. A layer with an unknown size is not claimed.
        device: OpenVINO's name of the device.
        bounds: what is known about integers, for layers that are right only on small ones.
    """
    claims, found = claims_of(device), {}
    for node in walk(model.graph):
        if not all(map(_is_constant, node.outputs)):
            version = opset_of(model, node)
            reason = _unknown(node) or _reason(node, version, claims, bounds)
            if reason is not None:
                found[node] = reason
    return found


def opset_of(model: ir.Model, node: ir.Node) -> int:
    """The version of the operator set that the layer belongs to."""
    names = ("", "ai.onnx") if node.domain in ("", "ai.onnx") else (node.domain,)
    return next((model.opset_imports[each] for each in names if each in model.opset_imports), 1)


def _reason(node: ir.Node, version: int, claims: Claims, bounds: Bounds) -> str | None:
    form = form_of(node, version)
    row = claims.row(form)
    reason = limit(node, form.since) or claims.why_not(form)
    if reason is not None or row is None or row.bits is None:
        return reason
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype is not None and value.dtype.is_integer():
            known = bounds(value)
            if known is None or known > 2**row.bits:
                kind = value.dtype.name.lower()
                return f"OPENVINO computes {kind} in fewer bits, and {value.name!r} may need them"
    return None


def _unknown(node: ir.Node) -> str | None:
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        if value.type is None:
            return f"the type of {value.name!r} is not known"
        if value.shape is None or not value.shape.is_static():
            return f"the size of {value.name!r} is not known"
    return None


def _is_constant(value: ir.Value) -> bool:
    return const_tensor(value) is not None
