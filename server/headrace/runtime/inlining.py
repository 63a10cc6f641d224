"""How large a network gets once its functions are inlined, counted without inlining.

A few hundred bytes of functions that each call the next twice make more nodes than any memory
holds. The counts are sums over the calls in order of dependency, so counting costs one step for
each call that is written down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from headrace.runtime.errors import InvalidModel
from headrace.runtime.limits import Limits

Identifier: TypeAlias = tuple[str, str, str]
"""Domain, name and overload of an operator or function."""


def check_inlined_size(
    calls: Counter[Identifier], functions: Mapping[Identifier, Counter[Identifier]], limits: Limits
) -> None:
    """Checks a network of nodes `calls`, where each of `functions` has nodes of its own.

    Raises:
        InvalidModel: too many nodes, functions nested too deep, or one that calls itself.
    """
    graph = {key: used.keys() & functions.keys() for key, used in functions.items()}
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
        sizes[key] = total(functions[key])
        depths[key] = 1 + max((depths[called] for called in graph[key]), default=0)
        if depths[key] > limits.call_depth:
            raise _invalid(f"functions call each other more than {limits.call_depth} deep")
    if total(calls) >= most:
        raise _invalid(
            f"the model has more than {limits.inlined_nodes} nodes once its functions are inlined"
        )


def _invalid(message: str) -> InvalidModel:
    return InvalidModel(message, field="model")
