"""Puts the layers of local functions in the places of their calls."""

from __future__ import annotations

import onnx_ir as ir
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
            an operator set than the network.
    """
    if not model.functions:
        return False
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
