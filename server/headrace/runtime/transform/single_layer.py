"""Makes a network of one layer, to ask a backend about the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
import onnx_ir as ir

from headrace.runtime.intake.naming import walk
from headrace.runtime.network.constants import const_tensor

_CONSTANT_BYTES = 1024


def outside_values(node: ir.Node) -> list[ir.Value]:
    """The values that the node needs from outside: its inputs, and those that its bodies read."""
    needed: dict[ir.Value, None] = {value: None for value in node.inputs if value is not None}
    for value in _captured(node):
        needed[value] = None
    return list(needed)


def constant(value: ir.Value) -> ir.TensorProtocol | None:
    """The value's tensor if it is small and the same in every run; otherwise None."""
    if value.is_graph_input():
        return None
    tensor = const_tensor(value)
    return tensor if tensor is not None and tensor.nbytes <= _CONSTANT_BYTES else None


def network_of(
    node: ir.Node,
    model: ir.Model,
    ir_version: int,
    version: Callable[[str, int], int],
    assumed: ir.TypeProtocol | None = None,
    *,
    sizes: bool = False,
) -> onnx.ModelProto:
    """A network with only a copy of `node`. Alike nodes give the same network.

    Its inputs have the types and ranks of the node's inputs, and hardly any sizes. Small constants
    stay constants.

    Args:
        node: a node of `model`.
        version: maps the domain and version of an operator set to the version to write.
        assumed: the type of inputs whose type is not known.
        sizes: declares all known sizes, for a backend to which they matter.
    """
    made = onnx.ModelProto(ir_version=ir_version)
    graph = made.graph
    graph.name = "layer"
    # All is made in its place, because a copy of a long list would stop other threads.
    proto = graph.node.add()
    ir.serde.serialize_node_into(proto, node)
    _forget_names(proto)
    names: dict[str, str] = {}
    has_bodies = any(True for _ in _captured(node)) or _has_bodies(node)
    for index, value in enumerate(outside_values(node)):
        name = value.name or ""
        names[name] = name if has_bodies else f"input{index}"
        tensor = constant(value)
        if tensor is not None:
            initializer = graph.initializer.add()
            initializer.CopyFrom(ir.serde.serialize_tensor(tensor))
            initializer.name = names[name]
        else:
            known = _all_sizes(value) if sizes else _known_sizes(value)
            graph.input.append(_declaration(names[name], value.type or assumed, known))
    for index, value in enumerate(node.outputs):
        if value.name:
            names[value.name] = value.name if has_bodies else f"output{index}"
            graph.output.append(_declaration(names[value.name], value.type, None))
    proto.input[:] = [names.get(name, "") for name in proto.input]
    proto.output[:] = [names.get(name, "") for name in proto.output]
    for domain, number in model.opset_imports.items():
        made.opset_import.add(domain=domain, version=version(domain, number))
    for function in model.functions.values() if _calls_function(node, model) else ():
        copied = made.functions.add()
        ir.serde.serialize_function_into(copied, function)
        for entry in copied.opset_import:
            entry.version = version(entry.domain, entry.version)
    return made


def _captured(node: ir.Node) -> Iterator[ir.Value]:
    inner = list(_inside(node))
    known = {value for layer in inner for value in layer.outputs}
    for each in inner:
        graph = each.graph
        if isinstance(graph, ir.Graph):
            known.update(graph.inputs)
            known.update(graph.initializers.values())
    for attribute in node.attributes.values():
        for graph in _graphs(attribute):
            known.update(graph.inputs)
            known.update(graph.initializers.values())
            yield from (value for value in graph.outputs if value not in known)
    for layer in inner:
        yield from (value for value in layer.inputs if value is not None and value not in known)


def _graphs(attribute: ir.Attr) -> list[ir.Graph]:
    if attribute.is_ref():
        return []
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    if attribute.type == ir.AttributeType.GRAPHS:
        return list(attribute.as_graphs())
    return []


def _has_bodies(node: ir.Node) -> bool:
    return any(_graphs(attribute) for attribute in node.attributes.values())


def _inside(node: ir.Node) -> Iterator[ir.Node]:
    for attribute in node.attributes.values():
        for graph in _graphs(attribute):
            yield from walk(graph)


def _calls_function(node: ir.Node, model: ir.Model) -> bool:
    return any(layer.op_identifier() in model.functions for layer in (node, *_inside(node)))


def _forget_names(proto: onnx.NodeProto) -> None:
    """Removes names that differ between alike nodes and mean nothing to the backend."""
    proto.name = ""
    proto.doc_string = ""
    del proto.metadata_props[:]
    for attribute in proto.attribute:
        attribute.doc_string = ""


def _declaration(
    name: str, value_type: ir.TypeProtocol | None, sizes: list[int | None] | None
) -> onnx.ValueInfoProto:
    info = onnx.ValueInfoProto(name=name)
    if value_type is None:
        return info
    info.type.CopyFrom(ir.serde.serialize_type(value_type))
    _set_shape(info.type, sizes)
    return info


def _all_sizes(value: ir.Value) -> list[int | None] | None:
    if value.shape is None:
        return None
    return [size if isinstance(size, int) else None for size in value.shape]


def _known_sizes(value: ir.Value) -> list[int | None] | None:
    """A size, or None, for each axis of an input. None if not even the rank may be declared.

    The length of a list is declared, because shape inference treats an unknown length as zero and
    refuses to resize a tensor to no sizes.
    """
    if value.shape is None:
        return None
    if value.shape.rank() != 1:
        return [None] * value.shape.rank()
    length = value.shape[0]
    return [length] if isinstance(length, int) else None


def _set_shape(proto: onnx.TypeProto, sizes: list[int | None] | None) -> None:
    """Gives the tensors of a type only the known sizes."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        _set_shape(proto.sequence_type.elem_type, sizes)
    elif kind == "optional_type":
        _set_shape(proto.optional_type.elem_type, sizes)
    else:
        proto.tensor_type.ClearField("shape")
        if sizes is not None:
            proto.tensor_type.shape.SetInParent()
            for size in sizes:
                dimension = proto.tensor_type.shape.dim.add()
                if size is not None:
                    dimension.dim_value = size
