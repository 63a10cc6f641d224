"""Layers in the form in which onnx is asked about their types: without what may be large."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import onnx
import onnx_ir as ir

from headrace.runtime.network.constants import tensor_of
from headrace.runtime.network.ranks import MAX_RANK

SMALL_BYTES: Final = 4096
"""Constants up to this size take part in the inference: shapes are computed from them."""

_MAX_VALUES: Final = 4096
"""The most values in a list of an attribute that onnx is told. If onnx copied a list of a million
texts, other threads would wait for a tenth of a second."""

_GIVE_SIZES: Final = frozenset(
    ["cats_int64s", "cats_strings", "classlabels_int64s", "classlabels_strings"]
)
"""Lists of ai.onnx.ml whose length is a size of the result."""

_MAX_SIZE: Final = 100_000
"""The most values in such a list."""

_LEAST: Final = {"axis": -MAX_RANK, "batch_dims": 0}
"""The least axis, and the least number of axes. Below that, and above the highest rank, onnx reads
beyond the shapes of some layers' inputs and ends the process."""

_LISTS: Final = (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS)


def is_askable(node: ir.Node) -> bool:
    """Whether the node's attributes are small, and its axes those that a tensor can have. If they
    are not small, onnx's result may be large. Long lists of ai.onnx.ml, such as trees, do not
    affect shapes, so `stub` cuts them."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            if tensor_of(attribute).nbytes > SMALL_BYTES:
                return False
        elif attribute.type == ir.AttributeType.INT:
            if name in _LEAST and not _LEAST[name] <= attribute.as_int() <= MAX_RANK:
                return False
        elif attribute.type in _LISTS and len(attribute.value) > _most(node, name):
            return False
    return True


def add_stub(proto: onnx.NodeProto, node: ir.Node) -> None:
    """Makes the empty `proto` the node, with bodies that have no layers, and with lists cut to
    equal lengths. The bodies' outputs have been inferred already."""
    attributes = node.attributes.items()
    held = {name for name, each in attributes if not each.is_ref() and _graphs(each)}
    cut = {name for name, each in attributes if _is_cut(name, each)}
    if not held and not cut:
        ir.serde.serialize_node_into(proto, node)
        return
    proto.op_type, proto.domain, proto.name = node.op_type, node.domain, node.name or ""
    proto.input.extend("" if value is None else value.name or "" for value in node.inputs)
    proto.output.extend(value.name or "" for value in node.outputs)
    for name, attribute in attributes:
        if name in cut:
            attribute = ir.Attr(name, attribute.type, attribute.value[:_MAX_VALUES])
        if name not in held:
            proto.attribute.append(_serialized(attribute))
            continue
        stubs = [
            onnx.GraphProto(
                name=name,
                input=[ir.serde.serialize_value(value) for value in body.inputs],
                output=[ir.serde.serialize_value(value) for value in body.outputs],
            )
            for body in _graphs(attribute)
        ]
        proto.attribute.append(onnx.helper.make_attribute(name, stubs[0]))


def _serialized(attribute: ir.Attr) -> onnx.AttributeProto:
    if attribute.is_ref():
        return ir.serde.serialize_reference_attribute(attribute)
    return ir.serde.serialize_attribute(attribute)


def _most(node: ir.Node, name: str) -> float:
    """How many values an attribute of a small node may list."""
    if node.domain == "":
        return _MAX_VALUES
    return _MAX_SIZE if name in _GIVE_SIZES else math.inf


def _is_cut(name: str, attribute: ir.Attr) -> bool:
    is_list = attribute.type in _LISTS and not attribute.is_ref()
    return is_list and len(attribute.value) > _MAX_VALUES and name not in _GIVE_SIZES


def _graphs(attribute: ir.Attr) -> Sequence[ir.Graph]:
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return ()
