"""Shapes that a network proves. What it only declares may be wrong, by mistake or on purpose."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TypeAlias

import onnx
import onnx_ir as ir

from headrace.runtime.type_inference import skeleton

_log = logging.getLogger(__name__)

_Sizes: TypeAlias = list[int | None]


class ProvenShapes:
    """What is certain of shapes: those of constants and of the network's inputs, which are checked
    before a run, and what follows from them."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    def sizes(self, value: ir.Value) -> _Sizes | None:
        """A size, or None, for each axis; None for a value of no certain rank."""
        tensor = constant(value)
        if tensor is not None:
            return [int(size) for size in tensor.shape.numpy()]
        return self._inferred.get(value.name or "")

    @cached_property
    def _inferred(self) -> Mapping[str, _Sizes]:
        proto = skeleton(self._model)
        for graph in _graphs(proto.graph):
            inside = () if graph is proto.graph else graph.input
            for info in (*graph.value_info, *graph.output, *inside):
                info.type.tensor_type.ClearField("shape")
        try:
            proto = onnx.shape_inference.infer_shapes(proto)
        except Exception as error:  # noqa: BLE001 - C++ raises of every kind; all is guarded then
            _log.info("shapes could not be inferred: %s", error)
        made = Counter(name for graph in _graphs(proto.graph) for name in _names(graph))
        sizes: dict[str, _Sizes] = {}
        for graph in _graphs(proto.graph):
            for info in (*graph.input, *graph.value_info, *graph.output):
                kind = info.type.tensor_type
                if kind.HasField("shape") and made[info.name] == 1:  # not of two bodies
                    dims = kind.shape.dim
                    sizes[info.name] = [
                        each.dim_value if each.HasField("dim_value") else None for each in dims
                    ]
        return sizes


def constant(value: ir.Value) -> ir.TensorProtocol | None:
    """The value if no run can change it."""
    return None if value.is_graph_input() else ir.convenience.get_const_tensor(value)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """What the graph itself gives a value to."""
    yield from (info.name for info in graph.input)
    yield from (name for node in graph.node for name in node.output)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                yield from _graphs(body)
