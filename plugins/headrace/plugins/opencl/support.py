"""Which layers the device runs: by operator and types, and by building each one's expression."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from tinygrad.tensor import Tensor

from headrace.plugins.opencl import limits, operators
from headrace.plugins.opencl.backend import Backend
from headrace.plugins.opencl.evaluator import Evaluation, Evaluator
from headrace.plugins.opencl.values import Value, tiny_type
from headrace.runtime.cancel import CancelToken
from headrace.runtime.errors import HeadraceError

_CONTROL = frozenset({"If", "Loop"})
_HOST_ONLY = frozenset({ir.DataType.STRING, ir.DataType.UNDEFINED})


class LayerSupport:
    """Asked about each node of one model. A trial builds a layer's expression for its static
    shapes, which takes no kernel and a millisecond or so."""

    def __init__(self, model: ir.Model, backend: Backend, device_id: int) -> None:
        self._model = model
        self._backend = backend
        self._types = backend.devices[device_id].types
        self._device = f"CL:{device_id}"

    def __call__(self, node: ir.Node) -> str | None:
        """None if the device runs the node, else the reason why not."""
        if node.op_identifier() in self._model.functions:
            return "a function that was not inlined, for DISABLE_TRANSFORMATIONS is set"
        return (
            self._without_operator(node)
            or self._without_type(node)
            or limits.reason(node)
            or self._trial(node)
        )

    def _without_operator(self, node: ir.Node) -> str | None:
        if node.domain in ("", "ai.onnx") and node.op_type in _CONTROL:
            return None
        opset = self._model.opset_imports.get(node.domain, 1)
        if operators.find(node, opset) is None:
            name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            return f"tinygrad has no {name}({opset})"
        bodies = any(each.type == ir.AttributeType.GRAPH for each in node.attributes.values())
        return f"{node.op_type} with a body" if bodies else None

    def _without_type(self, node: ir.Node) -> str | None:
        for value in (*node.inputs, *node.outputs):
            if value is None or value.dtype is None:
                continue
            if isinstance(value.type, ir.SequenceType | ir.OptionalType):
                return f"{value.name} is no plain tensor"
            if int(value.dtype) not in self._types:
                return f"the device does not compute in {value.dtype.name.lower()}"
        return None

    def _trial(self, node: ir.Node) -> str | None:
        if node.op_type in _CONTROL or any(
            value is not None and not _is_static(value) for value in node.inputs
        ):
            return None
        on_host = operators.host_inputs(node)
        if any(
            value is not None and value.const_value is None and at in on_host
            for at, value in enumerate(node.inputs)
        ):
            return None
        return self._backend.run(lambda: _build(node, self._model.opset_imports, self._device))


def _is_static(value: ir.Value) -> bool:
    shape = value.shape
    return (
        value.dtype is not None
        and shape is not None
        and all(isinstance(size, int) for size in shape)
    )


def _build(node: ir.Node, opsets: Mapping[str, int], device: str) -> str | None:
    empty = ir.Graph([], [], nodes=[], opset_imports=dict(opsets))
    evaluation = Evaluation(CancelToken())
    for value in node.inputs:
        if value is not None:
            evaluation.values[value] = _placeholder(value, device)
    try:
        outputs = Evaluator(ir.Model(empty, ir_version=10), device).layer(node, evaluation)
    except HeadraceError as error:
        return error.message.partition("\n")[0][:300]
    for value, output in zip(node.outputs, outputs, strict=False):
        if not value.name or value.shape is None or not _is_static(value):
            continue
        if output is None or isinstance(output, list):
            return f"tinygrad gives no {value.name}"
        given = tuple(output.shape) if isinstance(output, Tensor) else ()
        if isinstance(output, Tensor) and given != tuple(value.shape):
            return f"tinygrad gives {value.name} the shape {list(given)}"
    return None


def _placeholder(value: ir.Value, device: str) -> Value:
    if value.const_value is not None:
        return value.const_value.numpy()
    assert value.shape is not None
    assert value.dtype is not None
    sizes = [size for size in value.shape if isinstance(size, int)]
    return Tensor.empty(*sizes, dtype=tiny_type(value.dtype), device=device)
