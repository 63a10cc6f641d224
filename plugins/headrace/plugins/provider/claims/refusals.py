"""Layers that a provider gets wrong, and that a trial does not find: by the provider's name.

The faults were found by running onnx's backend cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.plugins.cpu.claims import refusals
from headrace.plugins.opencl.running import bounds
from headrace.runtime.device.compiled_plugin import Support

_SOFTPLUS: Final = "it rounds 1 + exp(x), so small results have few right digits"


def _always(reason: str) -> Support:
    return lambda _: reason


def _resize(node: ir.Node) -> str | None:
    return "antialias is not supported" if node.attributes.get_int("antialias", 0) else None


_OF_PROVIDER: Final[Mapping[str, Mapping[str, Support]]] = MappingProxyType(
    {
        "WebGpuExecutionProvider": {
            "DFT": _always("its sums are off by more than their last digits"),
            "Mish": _always(_SOFTPLUS),
            "Resize": _resize,
            "Softplus": _always(_SOFTPLUS),
        }
    }
)


def of_provider(name: str, model: ir.Model) -> Support:
    """Says why the provider of that name does not run a node of a model; None if nothing is known.

    With an index out of bounds, a kernel of a GPU reads what another request has left in memory.
    """
    rules = _OF_PROVIDER.get(name, {})

    def reason(node: ir.Node) -> str | None:
        if node.op_identifier() in model.functions:
            return "a function that was not inlined, for DISABLE_TRANSFORMATIONS is set"
        rule = rules.get(refusals.operator(node))
        return (
            refusals.reason(node)
            or (rule(node) if rule is not None else None)
            or bounds.why_unchecked(node, model.graph)
        )

    return reason
