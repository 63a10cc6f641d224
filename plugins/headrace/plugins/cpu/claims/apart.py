"""Which networks do not run in the server's process, but in one beside it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from headrace.plugins.cpu.claims import contributed, texts
from headrace.runtime.errors import UnsupportedLayer
from headrace.runtime.intake.naming import walk
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import current_asker

_SHARED = (
    "inputs of this operator are not checked, and it might read memory of others in the process "
    "that such networks share; whoever may unload all networks may load it"
)


def may_run_apart(network: Network) -> bool:
    """Whether the network may need a process of its own. This is quick to say, without the model,
    and most networks do not."""
    harmless = contributed.CHECKED - contributed.TAKE_TEXTS
    return texts.may_keep(
        (domain, name)
        for domain, name in network.operators
        if domain != contributed.DOMAIN or name not in harmless
    )


def why_apart(model: ir.Model) -> str | None:
    """Why the network needs a process of its own; None if it needs none. Functions that the network
    calls must be the model's own."""
    unchecked = _unchecked(model)
    if unchecked:
        return (
            f"layer {unchecked[0].name!r} ({unchecked[0].op_type}) has an operator of ONNX "
            "Runtime's own whose inputs are not checked"
        )
    return texts.TextCounts(model).refusal


def not_for_strangers(model: ir.Model) -> list[UnsupportedLayer]:
    """The layers that run in a process of their own, but not in one that others' networks share."""
    return [UnsupportedLayer(node.name or "", node.op_type, _SHARED) for node in _unchecked(model)]


def refused(network: Network) -> list[UnsupportedLayer]:
    """The layers of a network that whoever asks now may not run where others' networks run."""
    if current_asker().trusted or not may_run_apart(network):
        return []
    return not_for_strangers(network.model)


def _unchecked(model: ir.Model) -> Sequence[ir.Node]:
    """The layers whose operators are not checked, and the calls of functions that have such."""
    scopes: list[ir.Graph | ir.Function] = [*model.functions.values(), model.graph]
    domains = {domain for scope in scopes for domain in scope.opset_imports}
    if not any(map(contributed.is_domain, domains)):
        return ()
    calling: set[ir.OperatorIdentifier] = set()

    def found(scope: ir.Graph | ir.Function) -> list[ir.Node]:
        return [
            node
            for node in walk(scope)
            if node.op_identifier() in calling
            or (node.op_identifier() not in model.functions and contributed.reason(node))
        ]

    for key, function in model.functions.items():  # each after those that it calls
        if found(function):
            calling.add(key)
    return found(model.graph)
