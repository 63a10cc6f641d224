"""Infers types and shapes of a network's intermediate values.

They follow from rules of our own (`shapes.operators`, `output_types`), which take a tenth of the
time. onnx is asked about operators without a rule, and where it may know more than the rule.

onnx infers a whole network in one call, and the call holds Python's interpreter lock until it ends.
A few layers are enough to fill the memory: each Gather of a tensor by itself doubles the rank. So
this module asks onnx about a few layers at a time, and drops a rank that no tensor can have. onnx
would walk through bodies and functions itself; here, this module walks through them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Final

import onnx
import onnx_ir as ir

from headrace.runtime.intake.naming import bodies, walk
from headrace.runtime.network.constants import const_tensor
from headrace.runtime.network.onnx_inference import InferenceEnded, infer
from headrace.runtime.network.output_types import output_types
from headrace.runtime.network.ranks import MAX_RANK, exceeds, give_ranks
from headrace.runtime.network.shapes.formulas import Term
from headrace.runtime.network.shapes.operators import SHAPES, Shape, operator
from headrace.runtime.network.shapes.propagation import Propagation
from headrace.runtime.network.stubs import SMALL_BYTES, add_stub, is_askable
from headrace.runtime.network.type_names import type_of
from headrace.runtime.system.interruption import check

_log = logging.getLogger(__name__)

_LAYERS: Final = 8
"""How many layers onnx is asked about at a time. With doubled ranks, they take some megabytes."""

_NEED_TYPES: Final = frozenset(
    ["DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble"]
)
"""Operators about which onnx must not be asked if the type of an input is not known, because it
does not look, and ends the process. They are asked about alone, because the layers before them may
leave such a type open."""

_MOST_ENDS: Final = 8
"""How often onnx may end its process over one network. Each start takes a quarter of a second."""

_MOST_SECONDS: Final = 120.0
"""How long onnx may take for one network. The layers that are left stay without types."""

_MAX_LAYERS: Final = 200_000
"""The most layers that onnx is asked about for one network. Each call of a function counts its
layers again."""


def infer_types(model: ir.Model) -> frozenset[ir.Value]:
    """Fills in types and shapes that `model` does not declare, as far as ONNX can infer them.

    Declared types and shapes stay. If onnx's inference fails, a value stays without a type, because
    types only help a device to judge a layer.

    Returns:
        The values that are known to have more axes than any tensor has.
    """
    inference = TypeInference(model)
    inference.graph(model.graph)
    return frozenset(inference.deep)


class TypeInference:
    """Infers layer by layer, in the order in which they are added.

    Attributes:
        deep: values that are known to have more axes than any tensor has. Their shape stays
            unknown.
    """

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._opsets = model.opset_imports
        self._waiting: list[ir.Node] = []
        self._left = _MAX_LAYERS
        self._ends = 0
        self._seconds = 0.0
        self._declared = _Declared()
        self.deep = self._declared.deep

    def graph(self, layers: Iterable[ir.Node]) -> None:
        for node in layers:
            self.add(node)
        self.flush()

    def add(self, node: ir.Node) -> None:
        """Infers `node`, at once or at the next `flush`."""
        check()
        if _settled(node) or self._left <= 0:
            return
        self._left -= 1
        tensor = const_tensor(node.outputs[0]) if node.op_type == "Constant" else None
        if tensor is not None:
            _set(node.outputs[0], ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy()))
        elif node.op_identifier() in self._functions:
            self.flush()
            self._call(node)
        elif any(bodies(node)):
            self.flush()
            self._bodies(node)
            if not _from_branches(node):
                self._infer([node])
        elif self._told(node):
            pass
        elif is_askable(node):
            self._waiting.append(node)
            if len(self._waiting) >= _LAYERS:
                self.flush()

    def flush(self) -> None:
        """Infers the layers that have been added and not inferred yet."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._infer(waiting)

    def _told(self, node: ir.Node) -> bool:
        """Whether rules of our own tell all that is known of the outputs. onnx knows more at most
        where all sizes of the inputs are known."""
        if operator(node) not in SHAPES:
            return False
        if self._from_rules(node):
            return True
        made = {value for each in self._waiting for value in each.outputs}
        if not made.isdisjoint(node.inputs):
            self.flush()
            if self._from_rules(node):
                return True
        typed = all(value.type is not None or not value.name for value in node.outputs)
        return typed and not all(value is None or _is_fixed(value) for value in node.inputs)

    def _from_rules(self, node: ir.Node) -> bool:
        """Tells what follows from rules; whether nothing is left to find."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = self._opsets.get(node.domain, self._opsets.get(domain))
        if version is None:
            return False
        self._declared.layer(node)
        types = output_types(node, version)
        for value, kind in zip(node.outputs, types, strict=True):
            if value.name and value.type is None:
                value.type = kind
            if value.name and value.shape is None and value not in self.deep:
                value.shape = self._declared.shape(value)
        self._look_for_deep([node])
        give_ranks([node])
        return all(
            (_known(value) and _is_fixed(value)) or value in self.deep or not value.name
            for value in node.outputs
        )

    def _bodies(self, node: ir.Node) -> None:
        for _, body in bodies(node):
            for at, (inner, outer) in enumerate(zip(body.inputs, node.inputs, strict=False)):
                if inner.type is None:
                    inner.type = input_type(node, at, outer)
                if inner.shape is None and outer is not None and outer.shape is not None:
                    inner.shape = slice_shape(node, at, outer.shape)
            self.graph(body)

    def _call(self, node: ir.Node) -> None:
        """Infers a call through a copy of its function, which knows the types of its inputs."""
        function = self._functions[node.op_identifier()].clone()
        for inner, outer in zip(function.inputs, node.inputs, strict=False):
            if outer is not None:
                inner.type, inner.shape = outer.type, outer.shape
                inner.const_value = outer.const_value
        given = {**function.attributes, **node.attributes}
        for each in walk(function):
            for name, attribute in list(each.attributes.items()):
                if attribute.is_ref():
                    value = given.get(str(attribute.ref_attr_name))
                    del each.attributes[name]
                    if value is not None and value.value is not None:
                        each.attributes[name] = ir.Attr(name, value.type, value.value)
        opsets, self._opsets = self._opsets, function.opset_imports
        deep = len(self.deep)
        self.graph(function)
        self._opsets = opsets
        if len(self.deep) > deep:
            self.deep.update(node.outputs)
        for inner, outer in zip(function.outputs, node.outputs, strict=False):
            if not _known(outer):
                _set(outer, inner.type, inner.shape)

    def _infer(self, nodes: Sequence[ir.Node]) -> None:
        if self._ends >= _MOST_ENDS or self._seconds >= _MOST_SECONDS:
            return
        if any(node.op_type in _NEED_TYPES for node in nodes):
            if len(nodes) > 1:
                for node in nodes:
                    self._infer([node])
                return
            if not nodes[0].inputs or not all(map(_has_type, nodes[0].inputs)):
                return
        model = onnx.ModelProto(ir_version=10)
        graph = model.graph
        graph.name = "layers"
        produced = {value for node in nodes for value in node.outputs}
        read = {value: None for node in nodes for value in node.inputs if value is not None}
        try:
            for node in nodes:
                add_stub(graph.node.add(), node)
            for value in read.keys() - produced:
                if not self._add_constant(graph, value) and value.type is not None:
                    ir.serde.serialize_value_into(graph.input.add(), value)
            for value in produced:
                if value.name and value.type is not None:
                    ir.serde.serialize_value_into(graph.value_info.add(), value)
            for domain, version in self._opsets.items():
                model.opset_import.add(domain=domain, version=version)
            unknown = {value.name for value in produced if not _known(value)}
            types = {
                info.name: (
                    ir.serde.deserialize_type_proto_for_type(info.type),
                    ir.serde.deserialize_type_proto_for_shape(info.type),
                )
                for info in self._asked(model).value_info
                if info.name in unknown
            }
        except Exception as error:  # noqa: BLE001 - C++ raises of every kind; nothing depends on it
            _log.info("types of %r could not be inferred: %s", nodes[0].name, error)
            self._ends += isinstance(error, InferenceEnded)
            if len(nodes) > 1:
                for node in nodes:
                    self._infer([node])
            else:
                self._look_for_deep(nodes)
                self._give_only_types(nodes)
            return
        for value in produced:
            inferred = types.get(value.name or "")
            if inferred is None:
                continue
            if inferred[1] is not None and inferred[1].rank() > MAX_RANK:
                self.deep.add(value)
            _set(value, *inferred)
        self._look_for_deep(nodes)
        more = [self._give_only_types(nodes), give_ranks(nodes)]
        if any(more) and len(nodes) > 1:
            self._infer(nodes)  # again, for layers that read a value that is now known better

    def _give_only_types(self, nodes: Sequence[ir.Node]) -> bool:
        """Gives outputs the only type that their operator has for them, for example that of a
        Scaler, which onnx does not infer.

        Returns:
            Whether any output was given a type.
        """
        gave = False
        for node in nodes:
            if all(value.type is not None or not value.name for value in node.outputs):
                continue
            domain = "" if node.domain == "ai.onnx" else node.domain
            version = self._opsets.get(node.domain, self._opsets.get(domain))
            if version is None or not onnx.defs.has(node.op_type, version, domain):
                continue
            schema = onnx.defs.get_schema(node.op_type, version, domain)
            for value, formal in zip(node.outputs, schema.outputs, strict=False):
                if value.type is None and value.name and len(formal.types) == 1:
                    value.type = type_of(*formal.types)
                    gave |= value.type is not None
        return gave

    def _asked(self, model: onnx.ModelProto) -> onnx.GraphProto:
        """Has onnx infer the types, and counts how long that takes."""
        began = time.monotonic()
        try:
            return infer(model)
        finally:
            self._seconds += time.monotonic() - began

    def _look_for_deep(self, nodes: Sequence[ir.Node]) -> None:
        self.deep.update(value for node in nodes if exceeds(node) for value in node.outputs)

    def _add_constant(self, graph: onnx.GraphProto, value: ir.Value) -> bool:
        """Adds the value as a constant if it is one and is small. Shapes are computed from it."""
        tensor = const_tensor(value)
        if tensor is None or tensor.nbytes > SMALL_BYTES:
            return False
        constant = graph.initializer.add()
        ir.serde.serialize_tensor_into(constant, tensor)
        constant.name = value.name or ""
        return True


def _from_branches(node: ir.Node) -> bool:
    """Gives an If what its branches have in common; whether each output has a type."""
    if operator(node) != "If":
        return False
    branches = [body.outputs for _, body in bodies(node)]
    for value, *made in zip(node.outputs, *branches, strict=False):
        kinds, shapes = [each.type for each in made], [each.shape for each in made]
        if value.type is None and all(kind == kinds[0] for kind in kinds):
            value.type = kinds[0]
        if value.shape is None and None not in shapes:
            pairs = [list(shape) for shape in shapes if shape is not None]
            if all(len(sizes) == len(pairs[0]) for sizes in pairs):
                value.shape = ir.Shape(
                    one if all(size == one for size in others) else None
                    for one, *others in zip(*pairs, strict=True)
                )
    return all(value.type is not None or not value.name for value in node.outputs)


class _Declared(Propagation):
    """Believes what is declared. Sizes of one symbol are equal."""

    def of(self, value: ir.Value) -> Shape | None:
        shape = super().of(value)
        if shape is None and value.shape is not None:
            shape = self._shapes[value] = tuple(
                size
                if isinstance(size, int)
                else None
                if size.value is None
                else self.formulas.size_of_input(str(size.value), 0)
                for size in value.shape
            )
        return shape

    def shape(self, value: ir.Value) -> ir.Shape | None:
        """The sizes that were found. A formula has no name."""
        shape = self.of(value)
        if shape is None:
            return None
        return ir.Shape(_named(size) if isinstance(size, Term) else size for size in shape)


def _named(size: Term) -> str | None:
    return None if size.source is None else size.source[0]


def _set(value: ir.Value, found: ir.TypeProtocol | None, shape: ir.Shape | None) -> None:
    """Gives `value` the type and shape that were found, where none are declared."""
    if value.type is None:
        value.type = found
    if value.shape is None and shape is not None and shape.rank() <= MAX_RANK:
        if any(isinstance(size, int) and size < 0 for size in shape):
            return  # the size is too large for onnx's integers
        # onnx numbers its symbols anew in each call: one symbol of two calls may be two sizes.
        value.shape = ir.Shape(
            None
            if isinstance(size, ir.SymbolicDim) and str(size.value).startswith("unk__")
            else size
            for size in shape
        )


def _settled(node: ir.Node) -> bool:
    """Whether nothing is left to infer for the node and its bodies."""
    return all(map(_known, node.outputs)) and all(
        _settled(inner) for _, body in bodies(node) for inner in body
    )


def _has_type(value: ir.Value | None) -> bool:
    return value is not None and (value.type is not None or const_tensor(value) is not None)


def _is_fixed(value: ir.Value) -> bool:
    """Whether each size is known."""
    return const_tensor(value) is not None or (value.shape is not None and value.shape.is_static())


def _known(value: ir.Value) -> bool:
    return not value.name or (value.type is not None and value.shape is not None)


def input_type(node: ir.Node, at: int, outer: ir.Value | None) -> ir.TypeProtocol | None:
    """The type of a body's input, if an input of the layer determines it."""
    if node.op_type == "Loop" and at < 2:
        return ir.TensorType((ir.DataType.INT64, ir.DataType.BOOL)[at])
    if outer is None or node.op_type not in ("Loop", "Scan", "SequenceMap"):
        return None
    if node.op_type == "SequenceMap" and isinstance(outer.type, ir.SequenceType):
        return outer.type.elem_type
    return outer.type


def slice_shape(node: ir.Node, at: int, shape: ir.Shape) -> ir.Shape | None:
    """The shape of a body's input, if it is a slice of an input of the layer."""
    given, axes = map(node.attributes.get, ("num_scan_inputs", "scan_input_axes"))
    if node.op_type != "Scan" or given is None or given.is_ref():
        return None
    count = given.as_int()
    at -= len(node.inputs) - count
    if not 0 <= at < count or (axes is not None and (axes.is_ref() or at >= len(axes.value))):
        return None
    axis = axes.as_ints()[at] if axes is not None else 0
    if not -shape.rank() <= axis < shape.rank():
        return None
    sizes = list(shape)
    del sizes[axis]
    return ir.Shape(sizes)
