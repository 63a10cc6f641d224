"""A model as ONNX Runtime gets it: without texts that are nothing to it, as the stamps of layers.

onnx-ir's own serialisation takes half as long again, and ONNX Runtime reads what it writes. Types
and shapes of layers' results are worth their time: ONNX Runtime takes up to twice as long to open a
network without them.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
import onnx_ir as ir


def structure(model: ir.Model, left_out: Collection[str]) -> onnx.ModelProto:
    """The ModelProto without these initialisers of the main graph."""
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.functions.extend(map(ir.serde.serialize_function, model.functions.values()))
    _graph(proto.graph, model.graph, left_out)
    return proto


def _graph(proto: onnx.GraphProto, graph: ir.Graph, left_out: Collection[str] = ()) -> None:
    proto.name = graph.name or "graph"
    for value in graph.inputs:
        _value(proto.input.add(), value)
    for value in graph.outputs:
        _value(proto.output.add(), value)
    for name, value in graph.initializers.items():
        if name not in left_out and value.const_value is not None:
            initializer = proto.initializer.add()
            ir.serde.serialize_tensor_into(initializer, value.const_value)
            initializer.name = name
    for node in graph:
        _node(proto.node.add(), node)
        for value in node.outputs:
            if value.type is not None and value.name and not value.is_graph_output():
                _value(proto.value_info.add(), value)


def _value(proto: onnx.ValueInfoProto, value: ir.Value) -> None:
    if not isinstance(value.type, ir.TensorType):
        ir.serde.serialize_value_into(proto, value)
        return
    proto.name = value.name or ""
    tensor = proto.type.tensor_type
    tensor.elem_type = value.type.dtype.value
    if value.shape is None:
        return
    tensor.shape.SetInParent()
    for size in value.shape:
        dimension = tensor.shape.dim.add()
        if isinstance(size, int):
            dimension.dim_value = size
        elif size.value is not None:
            dimension.dim_param = size.value


def _node(proto: onnx.NodeProto, node: ir.Node) -> None:
    proto.op_type, proto.domain, proto.name = node.op_type, node.domain, node.name or ""
    proto.overload = node.overload
    proto.input.extend("" if value is None else value.name or "" for value in node.inputs)
    names = [value.name or "" for value in node.outputs]
    while names and not names[-1]:
        names.pop()
    proto.output.extend(names)
    for attribute in node.attributes.data.values():
        made = proto.attribute.add()
        if attribute.is_ref():
            ir.serde.serialize_reference_attribute_into(made, attribute)
        elif attribute.type == ir.AttributeType.GRAPH:
            made.name, made.type = attribute.name, onnx.AttributeProto.GRAPH
            _graph(made.g, attribute.as_graph())
        else:
            ir.serde.serialize_attribute_into(made, attribute)
