"""Tries whether a network of one layer can be built for its shapes. For the backend's thread only.

A trial makes the layer's expression but no kernel, so it takes about a millisecond.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
from tinygrad.tensor import Tensor

from headrace.plugins.opencl.backend.values import Value, tiny_type
from headrace.plugins.opencl.running.evaluator import Evaluation, TinygradEvaluator
from headrace.runtime.errors import HeadraceError
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.type_inference import infer_types

_REASON_LENGTH = 300


def why_not(network: bytes, device: str) -> str | None:
    """The reason why the layer cannot be built. None if it can be built.

    Args:
        network: a serialised model of one node. The node's inputs have static shapes.
        device: tinygrad's name of the device, for example ``CL:0``.
    """
    model = ir.from_proto(onnx.load_from_string(network))
    infer_types(model)
    (node,) = model.graph
    evaluation = Evaluation(CancelToken())
    for value in node.inputs:
        if value is not None:
            evaluation.values[value] = _placeholder(value, device)
    try:
        outputs = TinygradEvaluator(model, device).layer(node, evaluation)
    except HeadraceError as error:
        reason = error.message.removeprefix(f"layer {node.name!r} ({node.op_type})")
        return f"tinygrad{reason.splitlines()[0]}"[:_REASON_LENGTH]
    for value, output in zip(node.outputs, outputs, strict=False):
        sizes = static_shape(value)
        if not value.name or sizes is None:
            continue
        if output is None:
            return f"tinygrad gives no {value.name}"
        if isinstance(output, Tensor) and tuple(output.shape) != sizes:
            return f"tinygrad gives {value.name} the shape {list(output.shape)}"
    return None


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """The sizes of a tensor of known type. None if the type or a size is not known."""
    if value.dtype is None or value.shape is None:
        return None
    sizes = tuple(size for size in value.shape if isinstance(size, int))
    return sizes if len(sizes) == len(value.shape) else None


def _placeholder(value: ir.Value, device: str) -> Value:
    if value.const_value is not None:
        return value.const_value.numpy()
    sizes = static_shape(value)
    assert sizes is not None
    assert value.dtype is not None
    return Tensor.empty(*sizes, dtype=tiny_type(value.dtype), device=device)
