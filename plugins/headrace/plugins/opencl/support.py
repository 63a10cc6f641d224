"""Finds out which layers the device runs: checks operator and types, and builds the expression."""

from __future__ import annotations

import inspect
from collections.abc import Set as AbstractSet

import onnx_ir as ir

from headrace.plugins.opencl.backend import operators
from headrace.plugins.opencl.claims import refusals
from headrace.plugins.opencl.claims.trial import static_shape
from headrace.runtime.transform import single_layer
from headrace.runtime.transform.trials import Trials


class LayerSupport:
    """Says for each node of one model whether the device runs it.

    Args:
        model: the transformed model.
        types: ONNX's numbers of the types that the device computes in.
        trials: the trials of single layers on the device.
    """

    def __init__(self, model: ir.Model, types: AbstractSet[int], trials: Trials) -> None:
        self._model = model
        self._types = types
        self._trials = trials

    def __call__(self, node: ir.Node) -> str | None:
        """None if the device runs the node, otherwise the reason why it does not."""
        if node.op_identifier() in self._model.functions:
            return "a function that was not inlined, for DISABLE_TRANSFORMATIONS is set"
        return (
            self._without_operator(node)
            or self._without_type(node)
            or refusals.reason(node, self._opset(node))
            or self._trial(node)
        )

    def _opset(self, node: ir.Node) -> int:
        return self._model.opset_imports.get(node.domain, 1)

    def _without_operator(self, node: ir.Node) -> str | None:
        if node.domain in ("", "ai.onnx") and node.op_type == "If":
            return None
        opset = self._opset(node)
        if operators.find(node, opset) is None:
            name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            return f"tinygrad has no {name}({opset})"
        bodies = any(
            attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()
        )
        return f"{node.op_type} with a body" if bodies else None

    def _without_type(self, node: ir.Node) -> str | None:
        for value in (*node.inputs, *node.outputs):
            if value is None or value.dtype is None:
                continue
            if isinstance(value.type, ir.SequenceType | ir.OptionalType):
                return f"{value.name} is not a plain tensor"
            if int(value.dtype) not in self._types:
                return f"the device does not compute in {value.dtype.name.lower()}"
        return None

    def _trial(self, node: ir.Node) -> str | None:
        if node.op_type == "If":
            return None
        on_host = operators.host_inputs(node)
        for at, value in enumerate(node.inputs):
            if value is None or single_layer.constant(value) is not None:
                continue
            if at in on_host or static_shape(value) is None:
                return self._unknown_attribute(node)  # more is known when it runs
        return self._trials.reason(
            single_layer.network_of(
                node, self._model, self._model.ir_version, lambda _, version: version, sizes=True
            )
        )

    def _unknown_attribute(self, node: ir.Node) -> str | None:
        function = operators.find(node, self._opset(node))
        assert function is not None, "an operator was found before"
        taken = inspect.signature(function).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
            return None
        unknown = [name for name in node.attributes if name not in taken]
        return f"tinygrad's {node.op_type} takes no {', '.join(unknown)}" if unknown else None
