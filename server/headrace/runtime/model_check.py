"""What is wrong with the structure of a model from outside, before anything is built from it.

onnx's own checker is not used: it wants the weights, and it says what is wrong in the words of
its implementation. Whether operators exist and get what they want is the device's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headrace.runtime.errors import InvalidModel
from headrace.runtime.limits import Limits
from headrace.runtime.model_tensors import TensorData
from headrace.runtime.provenance import METADATA_PREFIX

Outer: TypeAlias = tuple[tuple[set[str], set[str]], ...]
"""Of each graph around a body: the values produced so far, and all of them."""

_MIN_IR_VERSION = 3
_GRAPH, _GRAPHS = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS
_TENSOR, _TENSORS = onnx.AttributeProto.TENSOR, onnx.AttributeProto.TENSORS
_SPARSE = (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS)
_STRINGS = (onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS)
_TYPES = (onnx.AttributeProto.TYPE_PROTO, onnx.AttributeProto.TYPE_PROTOS)


def check_model(proto: onnx.ModelProto, limits: Limits, tensors: TensorData) -> bool:
    """Checks `proto` and drops from it the metadata that only we may write.

    Returns:
        Whether the nodes of every graph come after those whose results they read.

    Raises:
        InvalidModel: naming the layer, value or tensor at fault and what to do about it.
    """
    _check_text(proto)
    if not proto.HasField("graph"):
        raise _invalid("not an ONNX model: it has no graph; send the bytes of an .onnx file")
    if not _MIN_IR_VERSION <= proto.ir_version <= onnx.IR_VERSION:
        raise _invalid(
            f"the model's IR version is {proto.ir_version}; {_MIN_IR_VERSION} to "
            f"{onnx.IR_VERSION} are known here: export it with another ir_version"
        )
    _drop_metadata(proto)
    check = _Check(limits, tensors)
    check.functions(proto.functions)
    scope = _Scope(check.opsets(proto.opset_import, "the model"))
    for value in (*proto.graph.input, *proto.graph.output):
        if not _has_type(value.type):
            raise _invalid(f"{value.name!r} has no type; inputs and outputs need one")
    check.graph(proto.graph, scope, "")
    return check.sorted


@dataclass(slots=True)
class _Scope:
    """What a graph and the bodies in it have in common."""

    opsets: Mapping[str, int]
    in_function: bool = False


class _Check:
    def __init__(self, limits: Limits, tensors: TensorData) -> None:
        self._limits = limits
        self._tensors = tensors
        self._nodes = 0
        self.sorted = True

    def functions(self, functions: Iterable[onnx.FunctionProto]) -> None:
        known: set[tuple[str, str, str]] = set()
        for function in functions:
            what = f"function {function.name!r}"
            self.name(function.name, "a function's name")
            key = (_domain(function.domain), function.name, function.overload)
            if not function.name or key in known:
                raise _invalid(f"{what} has no name or is there twice")
            _drop_metadata(function)
            scope = _Scope(self.opsets(function.opset_import, what), in_function=True)
            self._values(function.value_info)
            for attribute in function.attribute_proto:
                self.attribute(attribute, scope, (), what)
            names = [*function.attribute, *(each.name for each in function.attribute_proto)]
            if len(set(names)) != len(names):
                raise _invalid(f"{what} has an attribute twice")
            self._body(function, function.input, function.output, (), scope, what)
            known.add(key)

    def graph(self, graph: onnx.GraphProto, scope: _Scope, what: str, outer: Outer = ()) -> None:
        """Checks a graph, which is named `what` in errors and sees the values of `outer` graphs."""
        _drop_metadata(graph)
        if graph.sparse_initializer:
            raise _invalid("sparse initialisers are not supported; store them dense")
        self._values((*graph.input, *graph.output, *graph.value_info))
        inputs = [value.name for value in graph.input]
        initializers = [tensor.name for tensor in graph.initializer]
        for names, kind in ((inputs, "input"), (initializers, "initialiser")):
            if (twice := _twice(names)) is not None:
                raise _invalid(f"{kind} {twice!r} is there twice, or has no name")
        for tensor in graph.initializer:
            self._tensors.check(tensor, f"initialiser {tensor.name!r}")
            self.name(tensor.name, "an initialiser's name")
        given = dict.fromkeys((*inputs, *initializers))
        self._body(graph, given, [value.name for value in graph.output], outer, scope, what)

    def _body(
        self,
        owner: onnx.GraphProto | onnx.FunctionProto,
        given: Iterable[str],
        outputs: Iterable[str],
        outer: Outer,
        scope: _Scope,
        what: str,
    ) -> None:
        """Checks nodes and names: each value has one producer, and each reader finds it."""
        where = f" in {what}" if what else ""
        seen = set(given)
        produced = [name for node in owner.node for name in node.output if name]
        if (twice := _twice([*seen, *produced])) is not None:
            raise _invalid(f"the value {twice!r}{where} has more than one producer")
        everything = seen.union(produced)
        for node in owner.node:
            label = f"layer {node.name or next(iter(node.output), node.op_type)!r}{where}"
            self._node(node, scope, label)
            for name in node.input:
                if not name or name in seen:
                    continue
                if any(name in before for before, _ in outer):
                    continue
                if name not in everything and not any(name in values for _, values in outer):
                    raise _invalid(f"{label} reads {name!r}, which nothing produces")
                self.sorted = False
            is_custom = _domain(node.domain) not in ("", "ai.onnx.ml")
            for attribute in node.attribute:
                around = ((seen, everything), *outer)
                self.attribute(attribute, scope, around, label, is_custom=is_custom)
            seen.update(node.output)
        names = list(outputs)
        if (twice := _twice(names)) is not None:
            raise _invalid(f"the output {twice!r}{where} is there twice; give it an Identity")
        for name in names:
            if name not in everything:
                raise _invalid(
                    f"the output {name!r}{where} is not produced there; if it comes from an "
                    "outer graph, give it an Identity"
                )

    def _node(self, node: onnx.NodeProto, scope: _Scope, label: str) -> None:
        self._nodes += 1
        if self._nodes > self._limits.nodes:
            raise _invalid(f"the model has more than {self._limits.nodes} nodes")
        for name in (node.name, node.op_type, node.domain, *node.input, *node.output):
            self.name(name, f"a name in {label[:80]}")
        if not node.op_type:
            raise _invalid(f"{label} has no operator")
        domain = _domain(node.domain)
        if domain not in scope.opsets:
            raise _invalid(
                f"{label} uses the domain {domain!r}, for which there is no opset_import; add one"
            )
        if node.metadata_props:
            _drop_metadata(node)
        if len({attribute.name for attribute in node.attribute}) != len(node.attribute):
            raise _invalid(f"{label} has an attribute twice")

    def attribute(
        self,
        attribute: onnx.AttributeProto,
        scope: _Scope,
        outer: Outer,
        label: str,
        *,
        is_custom: bool = True,
    ) -> None:
        what = f"attribute {attribute.name!r} of {label}"
        self.name(attribute.name, "an attribute's name")
        kind = attribute.type
        if attribute.ref_attr_name:
            if not scope.in_function:
                raise _invalid(f"{what} refers to a function's attribute, outside of functions")
        elif kind in (_GRAPH, _GRAPHS):
            for body in (attribute.g,) if kind == _GRAPH else attribute.graphs:
                if len(outer) > self._limits.depth:
                    raise _invalid(f"graphs are nested more than {self._limits.depth} deep")
                self.graph(body, scope, what, outer)
        elif kind in (_TENSOR, _TENSORS):
            for tensor in (attribute.t,) if kind == _TENSOR else attribute.tensors:
                self._tensors.check(tensor, what)
        elif kind in _SPARSE:
            raise _invalid(f"{what} is a sparse tensor, which is not supported; store it dense")
        elif kind in _TYPES:
            for tp in (attribute.tp,) if kind == _TYPES[0] else attribute.type_protos:
                self.type(tp, what)
        elif kind in _STRINGS and not is_custom:
            for text in (attribute.s,) if kind == _STRINGS[0] else attribute.strings:
                try:
                    text.decode()
                except UnicodeDecodeError:
                    raise _invalid(f"{what} is not UTF-8") from None
        elif kind == onnx.AttributeProto.UNDEFINED or kind not in _KNOWN_KINDS:
            raise _invalid(f"{what} has no known type")

    def _values(self, values: Iterable[onnx.ValueInfoProto]) -> None:
        for value in values:
            self.name(value.name, "a value's name")
            if value.metadata_props:
                _drop_metadata(value)
            if _has_type(value.type):
                self.type(value.type, f"the value {value.name!r}")
            else:
                value.ClearField("type")  # a shape alone

    def type(self, proto: onnx.TypeProto, what: str) -> None:
        kind = proto.WhichOneof("value")
        while kind in ("sequence_type", "optional_type"):
            proto = getattr(proto, kind).elem_type
            kind = proto.WhichOneof("value")
        if kind is None:
            raise _invalid(f"{what} is of no type")
        if kind != "tensor_type":
            raise _invalid(f"{what} is a {kind.removesuffix('_type')}, which is not supported")
        try:
            ir.DataType(proto.tensor_type.elem_type)
        except ValueError:
            raise _invalid(
                f"{what} has the unknown element type {proto.tensor_type.elem_type}"
            ) from None
        for dimension in proto.tensor_type.shape.dim:
            if dimension.dim_value < -1:
                raise _invalid(f"{what} has the negative dimension {dimension.dim_value}")
            if dimension.dim_value == -1:  # how some exporters write an unknown size
                dimension.ClearField("dim_value")
            self.name(dimension.dim_param, "a dimension's name")

    def opsets(self, imports: Iterable[onnx.OperatorSetIdProto], what: str) -> Mapping[str, int]:
        known = onnx.defs.C.schema_version_map()
        opsets: dict[str, int] = {}
        for entry in imports:
            domain = _domain(entry.domain)
            self.name(domain, "a domain")
            if domain in opsets:
                raise _invalid(f"{what} imports the opset of domain {domain!r} twice")
            newest = known[domain][1] if domain in known else 2**31
            if not 1 <= entry.version <= newest:
                raise _invalid(
                    f"{what} uses opset {entry.version} of domain {domain or 'ai.onnx'!r}; 1 to "
                    f"{newest} are known here: export it for one of these"
                )
            opsets[domain] = entry.version
        return opsets

    def name(self, name: str, what: str) -> None:
        if len(name) > self._limits.name_length:
            raise _invalid(f"{what} is longer than {self._limits.name_length} characters")


_KNOWN_KINDS = frozenset(onnx.AttributeProto.AttributeType.values())


def _drop_metadata(
    proto: onnx.ModelProto
    | onnx.GraphProto
    | onnx.FunctionProto
    | onnx.NodeProto
    | onnx.ValueInfoProto,
) -> None:
    kept = [entry for entry in proto.metadata_props if not entry.key.startswith(METADATA_PREFIX)]
    if len(kept) != len(proto.metadata_props):
        del proto.metadata_props[:]
        proto.metadata_props.extend(kept)


def _has_type(proto: onnx.TypeProto) -> bool:
    if proto.WhichOneof("value") == "tensor_type":
        return proto.tensor_type.elem_type != onnx.TensorProto.UNDEFINED
    return proto.WhichOneof("value") is not None


def _check_text(message: Message) -> None:
    """protobuf gives text that is not UTF-8 as bytes, which nothing behind this expects."""
    for descriptor, value in message.ListFields():
        if descriptor.type == FieldDescriptor.TYPE_STRING:
            for text in (value,) if isinstance(value, str | bytes) else value:
                if not isinstance(text, str):
                    raise _invalid(f"{text[:80]!r}, a {descriptor.full_name}, is not UTF-8")
        elif descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in (value,) if isinstance(value, Message) else value:
                _check_text(inner)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _twice(names: list[str]) -> str | None:
    """A name that is empty or occurs twice, if any."""
    seen: set[str] = set()
    for name in names:
        if not name or name in seen:
            return name
        seen.add(name)
    return None


def _invalid(message: str) -> InvalidModel:
    return InvalidModel(message, field="model")
