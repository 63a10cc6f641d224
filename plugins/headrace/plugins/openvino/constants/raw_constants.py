"""Constants of the types that OpenVINO reads wrong unless they come as raw bytes.

ONNX keeps bfloat16 in `int32_data`, as bits, and uint32 in `uint64_data`, unless it is in
`raw_data`; `onnx.helper.make_tensor` does so. OpenVINO 2026.4 takes the bits for numbers, and the
64 bits for two elements. It reads every other type right.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from headrace.runtime.intake.naming import bodies, walk

_MISREAD: Final = (ir.DataType.BFLOAT16, ir.DataType.UINT32)


def make_raw(model: ir.Model) -> None:
    """Changes the constants of `model`, of bodies too, to raw ones of the same value where it
    matters. Its tensors, which other networks share, stay as they are."""
    nodes = list(walk(model.graph))
    for graph in (model.graph, *(body for node in nodes for _, body in bodies(node))):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _raw(value.const_value)
    for node in nodes:
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                tensor = attribute.as_tensor()
                if (raw := _raw(tensor)) is not tensor:
                    node.attributes[name] = ir.AttrTensor(name, raw)


def _raw(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    typed = isinstance(tensor, ir.TensorProtoTensor) and not tensor.raw.HasField("raw_data")
    if not typed or tensor.dtype not in _MISREAD:
        return tensor
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
