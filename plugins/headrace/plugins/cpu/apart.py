"""Which networks do not run in the server's process, but in one beside it."""

from __future__ import annotations

import onnx_ir as ir

from headrace.plugins.cpu import contributed, texts
from headrace.runtime.intake.naming import walk


def why_apart(model: ir.Model) -> str | None:
    """Why the network needs a process of its own; None if it needs none. Functions that the network
    calls must be the model's own."""
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    domains = {domain for scope in scopes for domain in scope.opset_imports}
    for scope in scopes if any(map(contributed.is_domain, domains)) else ():
        for node in walk(scope):
            if node.op_identifier() not in model.functions and contributed.reason(node):
                return (
                    f"layer {node.name!r} is {node.op_type}, an operator of ONNX Runtime's own "
                    "whose inputs are not checked"
                )
    return texts.Kept(model).refusal if texts.may_keep(model) else None
