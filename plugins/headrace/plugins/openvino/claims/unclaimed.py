"""Tells which layers of a network OPENVINO claims, and why it does not claim the others."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from functools import cache
from typing import Any, Final

import onnx_ir as ir

from headrace.plugins.openvino.claims.attributes import is_constant, limit, limit_of_operator
from headrace.plugins.openvino.claims.forms import form_of, schema_of
from headrace.plugins.openvino.claims.table import Claims
from headrace.plugins.openvino.sizes import inferred_anew, likely_shapes, sizing_inputs
from headrace.runtime.intake.naming import bodies
from headrace.runtime.network.network import Network
from headrace.runtime.network.shapes.operators import operator
from headrace.runtime.system.interruption import wanted

SSE4: Final = "SSE4"  # the capability of a processor that has no AVX to OpenVINO
_NEED_AVX: Final = ("Resize", "RoiAlign", "Softsign", "Upsample")
_UNKNOWN_AXES: Final = "the number of axes of"
_LISTS: Final = {"CPU": "allowed"}
_OF_SIZES: Final = ("Constant", "Shape", "Size")
_DRAWN: Final = ("Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike")


@cache
def claims_of(device: str) -> Claims:
    """The list of a device that OpenVINO finds, as ``CPU`` or ``GPU.0``. It is empty if there is no
    list of such devices: `make claims` makes one on a machine that has one."""
    made = _list_of(device)
    return Claims(made.ALLOWED if made is not None else "")


def version_of_claims(device: str) -> str | None:
    """The version of OpenVINO that the device's list was made with. None if there is no list."""
    made = _list_of(device)
    return made.VERSION if made is not None else None


def _list_of(device: str) -> Any:
    kind = device.partition(".")[0]
    name = _LISTS.get(kind, f"allowed_{kind.lower()}")
    try:
        return importlib.import_module(f"{__package__}.{name}")
    except ModuleNotFoundError:
        return None


def unclaimed_layers(
    network: Network, device: str, capabilities: Collection[str]
) -> dict[ir.Node, str]:
    """The layers of a transformed network that the device does not run, each with the reason.

    A number of axes may follow from sizes, as behind a Squeeze without axes. Then likely sizes tell
    it.

    Args:
        capabilities: as `unclaimed`.
    """
    given = sizing_inputs(network)
    found = unclaimed(network.model, device, given, capabilities)
    if not any(_UNKNOWN_AXES in why for why in found.values()):
        return found
    for likely in likely_shapes(network):
        sized = inferred_anew(network, likely).model
        twins = dict(zip(sized.graph, network.model.graph, strict=True))
        judged = unclaimed(sized, device, given, capabilities)
        if len(judged) < len(found):
            found = {twins[node]: why for node, why in judged.items()}
    return found


def unclaimed(
    model: ir.Model,
    device: str = "CPU",
    given: Collection[str] = (),
    capabilities: Collection[str] = (),
) -> dict[ir.Node, str]:
    """The layers that OPENVINO does not claim, each with the reason. A layer with bodies is never
    claimed, so what is in them is not judged.

    Nothing is compiled. A form does not depend on sizes, but on whether a value is a constant once
    the sizes of the inputs are known, which the structure of the network tells. A layer all results
    of which are such constants is not judged: it is computed once for each compilation, and the
    comparison with CPU's answers tells whether it was computed right. How large integers get, and
    what no elements have, is judged when sizes are known: see `backend.integers` and
    `backend.operations`.

    Args:
        model: a transformed network with all functions inlined, and with all types and ranks that
            can be known. A layer with an unknown one is not claimed.
        device: OpenVINO's name of the device.
        given: names of inputs that are constants to a compilation, because sizes follow from them.
        capabilities: the device's OPTIMIZATION_CAPABILITIES.
    """
    claims, fixed = claims_of(device), fixed_values(model.graph, given)
    found: dict[ir.Node, str] = {}
    for node in wanted(model.graph):
        reason = _reason(node, opset_of(model, node), claims, fixed)
        if SSE4 in capabilities and node.op_type in _NEED_AVX:
            reason = "on processors without AVX, OpenVINO computes this operator wrongly"
        if reason is not None:
            found[node] = reason
    return found


def fixed_values(graph: ir.Graph, given: Collection[str] = ()) -> set[ir.Value]:
    """The values that are the same in every run with the same sizes of the inputs: constants, sizes
    of values, and what is computed from them.

    Args:
        given: names of inputs that are the same, too.
    """
    fixed = {value for value in graph.inputs if value.name in given}
    fixed.update(graph.initializers.values())
    for node in graph:
        if node.domain not in ("", "ai.onnx") or node.op_type in _DRAWN or any(bodies(node)):
            continue
        inputs = [value for value in node.inputs if value is not None]
        known = bool(inputs) and all(value in fixed for value in inputs)
        if known or node.op_type in _OF_SIZES:
            fixed.update(node.outputs)
    return fixed


def opset_of(model: ir.Model, node: ir.Node) -> int:
    """The version of the operator set that the layer belongs to."""
    names = ("", "ai.onnx") if node.domain in ("", "ai.onnx") else (node.domain,)
    return next((model.opset_imports[name] for name in names if name in model.opset_imports), 1)


def _reason(node: ir.Node, version: int, claims: Claims, fixed: set[ir.Value]) -> str | None:
    def is_fixed(value: ir.Value) -> bool:
        return value in fixed or is_constant(value)

    if all(map(is_fixed, node.outputs)):
        schema = schema_of(node.domain, node.op_type, version)
        return limit_of_operator(node, schema.since_version if schema else 0, is_fixed)
    used = [each for each in (*node.inputs, *node.outputs) if each is not None and each.name]
    if any(value.type is None for value in used) and not any(bodies(node)):
        # It is behind a layer that is not claimed. The part of the network that HETERO cuts there
        # has a type, and is judged again.
        name = operator(node)
        return None if claims.knows(name) else f"{name} is not claimed"
    if (reason := _unknown(node)) is not None:
        return reason
    form = form_of(node, version, is_fixed)
    return limit(node, form.since, is_fixed) or claims.why_not(form)


def _unknown(node: ir.Node) -> str | None:
    if any(bodies(node)):
        return None  # it is not claimed whatever its values are
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name or not isinstance(value.type, ir.TensorType):
            continue
        if value.shape is None:
            return f"{_UNKNOWN_AXES} {value.name!r} is not known"
    return None
