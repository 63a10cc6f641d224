"""Which networks do not run in the server's process, but in one beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import onnx_ir as ir
import onnxruntime

from headrace.plugins.cpu.claims import contributed, texts
from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.notes import Notes
from headrace.runtime.device.cache_key import headrace_version
from headrace.runtime.errors import UnsupportedLayer
from headrace.runtime.intake.naming import walk
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import current_asker

_SHARED: Final = (
    "inputs of this operator are not checked, and it might read memory of others in the process "
    "that such networks share; whoever may unload all networks may load it"
)


class Apart(NamedTuple):
    """What keeps a network out of the server's process.

    Attributes:
        why: why it needs a process of its own; None if it needs none.
        unchecked: name and type of the layers whose operators are not checked. They run in a
            process of their own, but not in one that others' networks share.
    """

    why: str | None = None
    unchecked: Sequence[tuple[str, str]] = ()

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> Self:
        return cls(note["why"], [(name, kind) for name, kind in note["unchecked"]])


def apart(network: Network, cache: NetworkCache | None) -> Apart:
    """What keeps the network out of the server's process. The model is asked only if its operators
    do not say, which is so for few, and the cache does not.

    Args:
        network: functions that it calls are its own.
        cache: the server's; None if it has none.
    """
    if not texts.may_keep(network.operators):
        return Apart()
    return network.derived("apart", lambda: _kept(network, cache))


def refused(network: Network, cache: NetworkCache | None) -> list[UnsupportedLayer]:
    """The layers of a network that whoever asks now may not run where others' networks run."""
    if current_asker().trusted:
        return []
    return [UnsupportedLayer(*each, _SHARED) for each in apart(network, cache).unchecked]


def _kept(network: Network, cache: NetworkCache | None) -> Apart:
    def facts() -> object:
        return ["apart", headrace_version(), onnxruntime.__version__, network.digest]

    notes = Notes(cache, "models")
    found = notes.read(facts, Apart.of)
    if found is None:
        found = _found(network.model)
        notes.write(facts, found._asdict())
    return found


def _found(model: ir.Model) -> Apart:
    unchecked = [(node.name or "", node.op_type) for node in _unchecked(model)]
    if not unchecked:
        return Apart(texts.TextCounts(model).refusal)
    name, kind = unchecked[0]
    why = f"layer {name!r} ({kind}) has an operator of ONNX Runtime's own"
    return Apart(f"{why} whose inputs are not checked", unchecked)


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
