"""Converts float16 networks to float32, for devices that cannot compute in float16.

The network's inputs and outputs stay float16. If the network rounds to float16 on purpose, with a
Cast from another type, it still rounds. Everything in between is float32. That is more exact, and
values that would have overflowed float16 do not overflow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.intake import naming
from headrace.runtime.intake.provenance import ORIGINS, origins, stamp
from headrace.runtime.network.constants import tensor_of
from headrace.runtime.system.graph_memory import watched
from headrace.runtime.transform.functions import inline_functions

_DOMAINS = ("", "ai.onnx.ml")
_HALF, _SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT
_TYPE_ATTRIBUTES = (
    "dtype",
    "output_datatype",
    "output_dtype",
    "precision",
    "softmax_precision",
    "stash_type",
)
"""The attributes of ONNX's operators that hold an element type, except Cast's `to`."""


class Conversion(NamedTuple):
    """The result of a conversion.

    Attributes:
        model: the converted model, or the original model.
        reason: why the model was not converted, if it holds float16.
        computes: whether a layer of the network computes in another type than before, so that its
            results may differ.
    """

    model: ir.Model
    reason: str = ""
    computes: bool = False


def to_float32(model: ir.Model) -> Conversion:
    """Returns `model` itself if it holds no float16, otherwise a converted clone that shares the
    tensors of other types. The nodes of the clone have the origins of the nodes that they were made
    from."""
    if not _uses_half(model):
        return Conversion(model)
    clone = watched(model.clone())
    try:
        inline_functions(clone)
    except FailedPrecondition as error:
        return Conversion(model, str(error))
    reason = _obstacle(clone)
    if reason:
        return Conversion(model, reason)
    computes = any(map(_computes_in_half, naming.walk(clone.graph)))
    _Converter(clone).convert()
    return Conversion(clone, computes=computes)


def _uses_half(model: ir.Model) -> bool:
    for graph in naming.graphs(model):
        values = [*graph.inputs, *graph.initializers.values()]
        values += (value for node in graph for value in node.outputs)
        if any(value.dtype == _HALF for value in values):
            return True
    return False


def _computes_in_half(node: ir.Node) -> bool:
    """Whether the node is a layer of the network that takes or gives float16 and does not convert
    types. The nodes that preprocessing adds for a caller that sends float16 stand for no layer."""
    if node.op_type in ("Cast", "CastLike", "Constant") or _is_ours(node):
        return False
    values = (*node.inputs, *node.outputs)
    return any(value is not None and value.dtype == _HALF for value in values)


def _is_ours(node: ir.Node) -> bool:
    return ORIGINS in node.metadata_props and not origins(node)


def _obstacle(model: ir.Model) -> str:
    """Why the model cannot be converted; empty if it can."""
    graph = model.graph
    for value in (*graph.inputs, *graph.outputs):
        if value.dtype == _HALF and not isinstance(value.type, ir.TensorType):
            return f"{value.name!r} is a sequence or optional of float16"
    for node in naming.walk(graph):
        for value in node.outputs:
            if value.name and value.type is None:
                return f"the type of {value.name!r} is not known"
        if any(
            value is not None and value.dtype == _HALF for value in (*node.inputs, *node.outputs)
        ):
            if node.domain not in _DOMAINS:
                return f"{node.name!r} is {node.domain}::{node.op_type}, whose types are not known"
            if node.op_type == "BitCast":
                return f"{node.name!r} reads the bits of a float16"
    return ""


class _Converter:
    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names = naming.value_names(model)
        self._narrow: set[ir.Value] = set()  # what stays float16

    def convert(self) -> None:
        graph = self._model.graph
        self._narrow.update(graph.inputs)
        outputs = [value.dtype == _HALF for value in graph.outputs]
        nodes = list(naming.walk(graph))
        casts = [node for node in nodes if _casts_to_half(node)]
        rounding = [node for node in casts if not _reads_half(node)]
        for node in casts:
            if _reads_half(node):  # it rounds nothing, and must not begin to round
                _cast_to_float32(node)
        for node in rounding:
            self._keep_rounding(node)
        for node in nodes:
            _widen_attributes(node)
            for value in node.outputs:
                self._widen(value)
        for each in naming.graphs(self._model):
            for value in (*each.inputs, *each.initializers.values()):
                self._widen(value)
        for value in graph.inputs:
            if value.dtype == _HALF and value.uses():
                self._widen_input(value)
        for at, half in enumerate(outputs):
            if half and graph.outputs[at] not in self._narrow:
                self._narrow_output(at)

    def _keep_rounding(self, node: ir.Node) -> None:
        """Lets the readers of a cast to float16 read its result as float32."""
        if node.op_type == "CastLike":
            node.op_type = "Cast"
            node.resize_inputs(1)
            node.attributes["to"] = ir.AttrInt64("to", _HALF.value)
        narrow, graph = node.outputs[0], node.graph
        self._narrow.add(narrow)
        cast = self._cast(narrow, _SINGLE, origins(node))
        _read_instead(narrow, cast)
        if graph is None:
            return
        graph.insert_after(node, cast)
        if graph is not self._model.graph:  # the inputs and outputs of bodies are float32
            for at, value in enumerate(graph.outputs):
                if value is narrow:
                    graph.outputs[at] = cast.outputs[0]

    def _widen(self, value: ir.Value) -> None:
        if value.dtype != _HALF or value in self._narrow:
            return
        value.type = _wide_type(value.type)
        if value.const_value is not None:
            value.const_value = _wide_tensor(value.const_value)

    def _widen_input(self, value: ir.Value) -> None:
        graph = self._model.graph
        cast = self._cast(value, _SINGLE, ())
        _read_instead(value, cast)
        graph.insert_before(graph[0], cast)

    def _narrow_output(self, at: int) -> None:
        graph = self._model.graph
        wide = graph.outputs[at]
        cast = self._cast(wide, _HALF, ())
        narrow = cast.outputs[0]
        graph.outputs[at] = narrow
        narrow.metadata_props.update(wide.metadata_props)
        narrow.name, wide.name = wide.name, narrow.name
        cast.name = narrow.name
        graph.append(cast)

    def _cast(self, value: ir.Value, dtype: ir.DataType, names: tuple[str, ...]) -> ir.Node:
        name = self._names.fresh(f"{value.name}/{dtype.name.lower()}")
        output = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
        node = ir.node("Cast", [value], {"to": dtype.value}, outputs=[output], name=name)
        stamp(node, names)
        return node


def _casts_to_half(node: ir.Node) -> bool:
    """Whether the node is an explicit cast to float16."""
    return (
        node.domain == ""
        and node.op_type in ("Cast", "CastLike")
        and node.outputs[0].dtype == _HALF
    )


def _reads_half(node: ir.Node) -> bool:
    source = node.inputs[0]
    return source is not None and source.dtype == _HALF


def _cast_to_float32(node: ir.Node) -> None:
    node.op_type = "Cast"
    node.resize_inputs(1)
    node.attributes["to"] = ir.AttrInt64("to", _SINGLE.value)


def _read_instead(value: ir.Value, cast: ir.Node) -> None:
    for reader, at in list(value.uses()):
        if reader is not cast:
            reader.replace_input_with(at, cast.outputs[0])


def _widen_attributes(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if node.domain not in _DOMAINS or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = tensor_of(attribute)
            if tensor.dtype == _HALF:
                node.attributes[name] = ir.AttrTensor(name, _wide_tensor(tensor))
        elif attribute.type == ir.AttributeType.TYPE_PROTO:
            held = attribute.value
            wide = ir.TypeAndShape(_wide_type(held.type), held.shape)
            node.attributes[name] = ir.AttrTypeProto(name, wide)
        elif name in _TYPE_ATTRIBUTES and attribute.value == _HALF.value:
            node.attributes[name] = ir.AttrInt64(name, _SINGLE.value)


def _wide_type(half: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    """The same type with float32 elements. It is a new object, because clones share types."""
    if isinstance(half, ir.SequenceType | ir.OptionalType):
        element = _wide_type(half.elem_type)
        assert element is not None
        return type(half)(element, denotation=half.denotation)
    if isinstance(half, ir.TensorType) and half.dtype == _HALF:
        return ir.TensorType(_SINGLE, denotation=half.denotation)
    return half


def _wide_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)
