"""Counts how large a network gets once its functions are inlined, without inlining them.

A few hundred bytes of functions that each call the next one twice make more nodes than fit in any
memory. The counts are sums over the calls in order of dependency, so counting costs one step for
each call in the model.
"""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

import onnx_ir as ir

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.naming import walk

Identifier: TypeAlias = tuple[str, str, str]
"""Domain, name and overload of an operator or function."""


def calls(graph: ir.Graph | ir.Function) -> Counter[Identifier]:
    """Counts how often `graph` and its bodies run each operator and function."""
    return Counter(node.op_identifier() for node in walk(graph))


def settle_functions(model: ir.Model, limits: Limits) -> None:
    """Checks how large inlining would make `model`. It also puts each function after the functions
    that it calls, because onnx's reference implementation needs that order.

    Raises:
        InvalidModel: there are too many nodes, functions are nested too deep, or a function calls
            itself.
    """
    if not model.functions:
        return
    called = {key: calls(function) for key, function in model.functions.items()}
    graph = {key: used.keys() & called.keys() for key, used in called.items()}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        name = error.args[1][0][1]
        raise _invalid(f"the function {name!r} calls itself; recursion is not ONNX") from None
    sizes: dict[Identifier, int] = {}
    depths: dict[Identifier, int] = {}
    most = limits.inlined_nodes + 1

    def total(used: Counter[Identifier]) -> int:
        return min(most, sum(count * sizes.get(key, 1) for key, count in used.items()))

    for key in order:
        sizes[key] = total(called[key])
        depths[key] = 1 + max((depths[inner] for inner in graph[key]), default=0)
        if depths[key] > limits.call_depth:
            raise _invalid(f"functions call each other more than {limits.call_depth} deep")
    if total(calls(model.graph)) >= most:
        raise _invalid(
            f"the model has more than {limits.inlined_nodes} nodes once its functions are inlined"
        )
    for key in order:
        model.functions[key] = model.functions.pop(key)


def _invalid(message: str) -> InvalidModel:
    return InvalidModel(message, field="model")
