"""Constants of the types that OpenVINO reads wrongly unless they are stored as raw bytes.

Without `raw_data`, ONNX stores bfloat16 as bits in `int32_data`, and uint32 in `uint64_data`.
`onnx.helper.make_tensor` stores them so. OpenVINO 2026.4 reads the bits as numbers, and the 64 bits
as two elements. It reads every other type correctly.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from headrace.runtime.intake.naming import bodies, walk

_MISREAD: Final = (ir.DataType.BFLOAT16, ir.DataType.UINT32)


def make_raw(model: ir.Model) -> None:
    """Replaces constants of `model` and its bodies by raw ones of the same value if OpenVINO would
    read them wrongly. Does not change the tensors themselves, because other networks share them."""
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
