"""Types and shapes of a network's intermediate values."""

from __future__ import annotations

import logging

import onnx
import onnx_ir as ir

from headrace.runtime.naming import walk

_log = logging.getLogger(__name__)

_SMALL_BYTES = 4096
"""Initialisers up to this size take part in the inference: shapes are computed from them."""


def infer_types(model: ir.Model) -> None:
    """Fills in types and shapes that `model` does not declare, as far as ONNX can tell them.

    What is declared stays. Does nothing where everything is declared, and leaves things as they
    are where onnx's inference fails: types help a device to judge a layer, no more.
    """
    if all(_known(value) for node in walk(model.graph) for value in node.outputs):
        return
    try:
        inferred = onnx.shape_inference.infer_shapes(skeleton(model))
    except Exception as error:  # noqa: BLE001 - C++ raises of every kind; nothing depends on it
        _log.info("types could not be inferred: %s", error)
        return
    _fill(model.graph, inferred.graph)


def _fill(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    """Gives the values of `graph` and its bodies what is new in the same graph `inferred`."""
    types = {info.name: info.type for info in (*inferred.value_info, *inferred.output)}
    for node, proto in zip(graph, inferred.node, strict=True):
        for value in node.outputs:
            found = types.get(value.name or "")
            if found is None or _known(value):
                continue
            if value.type is None:
                value.type = ir.serde.deserialize_type_proto_for_type(found)
            if value.shape is None:
                value.shape = ir.serde.deserialize_type_proto_for_shape(found)
        for each in proto.attribute:
            if each.type == onnx.AttributeProto.GRAPH:
                _fill(node.attributes[each.name].as_graph(), each.g)
            elif each.type == onnx.AttributeProto.GRAPHS:
                held = node.attributes[each.name].as_graphs()
                for body, found_body in zip(held, each.graphs, strict=True):
                    _fill(body, found_body)


def _known(value: ir.Value) -> bool:
    return not value.name or (value.type is not None and value.shape is not None)


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """The model with its large initialisers turned into inputs of their type and shape."""
    small = model.clone()
    graph = small.graph
    for name, value in list(graph.initializers.items()):
        if value.const_value is not None and value.const_value.nbytes > _SMALL_BYTES:
            del graph.initializers[name]
            if not value.is_graph_input():
                graph.inputs.append(value)
    return ir.to_proto(small)
