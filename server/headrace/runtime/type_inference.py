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
        inferred = ir.from_proto(onnx.shape_inference.infer_shapes(_skeleton(model)))
    except Exception as error:  # noqa: BLE001 - C++ raises of every kind; nothing depends on it
        _log.info("types could not be inferred: %s", error)
        return
    for graph, found in zip(model.graphs(), inferred.graphs(), strict=True):
        values = {value.name: value for node in found for value in node.outputs}
        for node in graph:
            for value in node.outputs:
                other = values.get(value.name)
                if other is None:
                    continue
                if value.type is None:
                    value.type = other.type
                if value.shape is None and other.shape is not None:
                    value.shape = other.shape.copy()


def _known(value: ir.Value) -> bool:
    return not value.name or (value.type is not None and value.shape is not None)


def _skeleton(model: ir.Model) -> onnx.ModelProto:
    """The model with its large initialisers turned into inputs of their type and shape."""
    small = model.clone()
    graph = small.graph
    for name, value in list(graph.initializers.items()):
        if value.const_value is not None and value.const_value.nbytes > _SMALL_BYTES:
            del graph.initializers[name]
            if not value.is_graph_input():
                graph.inputs.append(value)
    return ir.to_proto(small)
