"""Puts the layers of local functions in the places of their calls."""

from __future__ import annotations

import onnx_ir as ir
from onnx import defs
from onnx_ir.passes.common import InlinePass

from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.intake.demands import check_numbers
from headrace.runtime.intake.naming import walk


def inline_functions(model: ir.Model) -> bool:
    """
    Returns: whether the model had a call.

    Raises:
        InvalidModel: a call gives a layer an integer that it does not take.
        FailedPrecondition: a function cannot be inlined. For example, it imports another version of
            an operator set than the network, and has operators that have changed between the two.
    """
    if not model.functions:
        return False
    for function in model.functions.values():
        _follow(model, function)
    try:
        modified = bool(InlinePass()(model).modified)
    except Exception as error:  # noqa: BLE001 - onnx-ir wraps whatever it finds
        raise FailedPrecondition(
            f"the network's functions cannot be inlined: {error.__cause__ or error}; inline them "
            "with onnx.inliner.inline_local_functions(model, convert_version=True)",
            field="model",
        ) from None
    check_numbers(walk(model.graph))
    return modified


def _follow(model: ir.Model, function: ir.Function) -> None:
    """Gives the function the network's versions of operator sets where all its layers mean the same
    in both. Converters write each function with the oldest version that has its operators."""
    for domain, own in [*function.opset_imports.items()]:
        wanted = model.opset_imports.get(domain, own)
        layers = (
            node.op_type
            for node in walk(function)
            if node.domain == domain and node.op_identifier() not in model.functions
        )
        if wanted != own and all(_are_same(layer, domain, own, wanted) for layer in layers):
            function.opset_imports[domain] = wanted


def _are_same(op_type: str, domain: str, one: int, other: int) -> bool:
    try:
        schemas = [defs.get_schema(op_type, version, domain) for version in (one, other)]
    except defs.SchemaError:
        return False
    return schemas[0].since_version == schemas[1].since_version
