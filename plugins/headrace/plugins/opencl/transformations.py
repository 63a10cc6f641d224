"""The device's own graph transformations."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass


def inline_functions(model: ir.Model) -> bool:
    """Replaces calls of local functions by the functions' nodes."""
    return bool(model.functions) and bool(InlinePass()(model).modified)


TRANSFORMATIONS = (inline_functions,)
