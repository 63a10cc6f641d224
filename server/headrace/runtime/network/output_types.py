"""The types of a layer's outputs, as far as its operator's schema tells them by its inputs."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import onnx
import onnx_ir as ir

from headrace.runtime.network.constants import const_tensor, tensor_of
from headrace.runtime.network.type_names import type_of

_Source: TypeAlias = "int | ir.TypeProtocol | None"
"""An input that has the same type, or the only type that the output may have."""


def output_types(node: ir.Node, version: int) -> list[ir.TypeProtocol | None]:
    """The types of the outputs, or None for one that the schema does not tell.

    Args:
        version: of the node's operator set.
    """
    if node.op_type == "Cast":
        target = node.attributes.get("to")
        if target is None or target.is_ref() or target.value not in {*ir.DataType}:
            return [None]
        return [ir.TensorType(ir.DataType(target.value))]
    if node.op_type == "ConstantOfShape":
        given = node.attributes.get("value")
        if given is None:
            return [ir.TensorType(ir.DataType.FLOAT)]
        if given.is_ref() or given.type != ir.AttributeType.TENSOR:
            return [None]
        return [ir.TensorType(tensor_of(given).dtype)]
    domain = "" if node.domain == "ai.onnx" else node.domain
    sources = _sources(domain, node.op_type, version, len(node.outputs))
    return [_input_type(node, source) if isinstance(source, int) else source for source in sources]


def _input_type(node: ir.Node, index: int) -> ir.TypeProtocol | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or value.type is not None:
        return None if value is None else value.type
    tensor = const_tensor(value)
    return None if tensor is None else ir.TensorType(tensor.dtype)


@lru_cache(4096)
def _sources(domain: str, op_type: str, version: int, count: int) -> tuple[_Source, ...]:
    if not onnx.defs.has(op_type, version, domain):
        return (None,) * count
    schema = onnx.defs.get_schema(op_type, version, domain)
    first: dict[str, int] = {}
    for at, formal in enumerate(schema.inputs):
        first.setdefault(formal.type_str, at)
    sources: list[_Source] = []
    for at in range(count):
        formal = schema.outputs[min(at, len(schema.outputs) - 1)]
        single = type_of(*formal.types) if len(formal.types) == 1 else None
        sources.append(first.get(formal.type_str, single))
    return tuple(sources)
