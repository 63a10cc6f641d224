"""Checks the structure of a model from outside, before anything is built from it.

onnx's own checker is not used: it needs the weights, and its errors describe its implementation.
The device decides whether operators exist and get valid inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import onnx

from headrace.runtime.intake.declarations import (
    Declarations,
    canonical_domain,
    check_text,
    drop_metadata,
    has_type,
    invalid,
)
from headrace.runtime.intake.demands import (
    check_bodies,
    check_split,
    demands_of,
    has_short_lists,
    kind_name,
    wrong_number,
)
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.tensors import TensorData
from headrace.runtime.intake.zip_maps import WAY_OUT
from headrace.runtime.system.interruption import wanted

Outer: TypeAlias = tuple[tuple[set[str], set[str]], ...]
"""For each graph around a body, the values produced so far and all values."""

PIPELINE_DOMAIN: Final = "headrace.pipeline"
"""The domain of the layers that are the steps of a pipeline."""
_MIN_IR_VERSION = 3
_INT = onnx.AttributeProto.INT
_GRAPH, _GRAPHS = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS
_TENSOR, _TENSORS = onnx.AttributeProto.TENSOR, onnx.AttributeProto.TENSORS
_SPARSE = (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS)
_STRINGS = (onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS)
_TYPES = (onnx.AttributeProto.TYPE_PROTO, onnx.AttributeProto.TYPE_PROTOS)


def check_model(proto: onnx.ModelProto, limits: Limits, tensors: TensorData) -> bool:
    """Checks `proto` and removes the metadata that only headrace may write.

    Returns:
        Whether in every graph each node comes after the nodes whose results it reads.

    Raises:
        InvalidModel: the model is wrong. The error names the layer, value or tensor at fault and
            says what to do about it.
    """
    check_text(proto)
    if not proto.HasField("graph"):
        raise invalid("not an ONNX model: it has no graph; send the bytes of an .onnx file")
    if not _MIN_IR_VERSION <= proto.ir_version <= onnx.IR_VERSION:
        raise invalid(
            f"the model's IR version is {proto.ir_version}; {_MIN_IR_VERSION} to "
            f"{onnx.IR_VERSION} are supported; export the model with one of these"
        )
    drop_metadata(proto)
    declared = Declarations(limits)
    check = _Check(limits, tensors, declared)
    check.functions(proto.functions)
    scope = _Scope(declared.opsets(proto, "the model"))
    if not proto.graph.output:
        raise invalid("the network has no output, so there is nothing to infer")
    for value in (*proto.graph.input, *proto.graph.output):
        if not has_type(value.type) and not _is_pipeline(proto):
            raise invalid(f"{value.name!r} has no type; inputs and outputs need one")
    check.graph(proto.graph, scope, "")
    if (texts := declared.texts + tensors.texts) > limits.texts:
        raise invalid(
            f"the model holds {texts} texts in lists and tensors, where a tree has one for each "
            f"node; at most {limits.texts} are allowed; use several models"
        )
    return check.sorted


def _is_pipeline(proto: onnx.ModelProto) -> bool:
    """Whether the types follow from other networks, when a device loads it."""
    return all(node.domain == PIPELINE_DOMAIN for node in proto.graph.node)


@dataclass(slots=True)
class _Scope:
    """The data that a graph and the bodies in it share."""

    opsets: Mapping[str, int]
    in_function: bool = False


class _Check:
    def __init__(self, limits: Limits, tensors: TensorData, declared: Declarations) -> None:
        self._limits = limits
        self._tensors = tensors
        self._declared = declared
        self._functions: set[tuple[str, str, str]] = set()
        self.sorted = True

    def functions(self, functions: Sequence[onnx.FunctionProto]) -> None:
        self._functions = {
            (canonical_domain(each.domain), each.name, each.overload) for each in functions
        }
        known: set[tuple[str, str, str]] = set()
        for function in functions:
            what = f"function {function.name!r}"
            self._declared.name(function.name, "a function's name")
            key = (canonical_domain(function.domain), function.name, function.overload)
            if not function.name or key in known:
                raise invalid(f"{what} has no name, or occurs twice")
            drop_metadata(function)
            scope = _Scope(self._declared.opsets(function, what), in_function=True)
            self._declared.values(function.value_info)
            self._declared.lists(function.attribute_proto, what, short=True)
            for attribute in function.attribute_proto:
                self.attribute(attribute, scope, (), what)
            names = [*function.attribute, *(each.name for each in function.attribute_proto)]
            if len(set(names)) != len(names):
                raise invalid(f"{what} has an attribute twice")
            self._body(function, function.input, function.output, (), scope, what)
            known.add(key)

    def graph(self, graph: onnx.GraphProto, scope: _Scope, what: str, outer: Outer = ()) -> None:
        """Checks a graph. Errors name it `what`. It can read the values of `outer` graphs."""
        drop_metadata(graph)
        _repeat_outputs(graph)
        self._declared.values((*graph.input, *graph.output, *graph.value_info))
        inputs = [value.name for value in graph.input]
        sparse = graph.sparse_initializer
        initializers = [tensor.name for tensor in graph.initializer]
        initializers += [each.values.name for each in sparse]
        for names, kind in ((inputs, "input"), (initializers, "initialiser")):
            if (twice := _twice(names)) is not None:
                raise invalid(f"{kind} {twice!r} occurs twice, or has no name")
        for tensor in graph.initializer:
            self._tensors.check(tensor, f"initialiser {tensor.name!r}")
            self._declared.name(tensor.name, "an initialiser's name")
        for each in sparse:
            self._declared.name(each.values.name, "an initialiser's name")
            made = self._tensors.dense(each, f"initialiser {each.values.name!r}")
            graph.initializer.append(made)
        del sparse[:]
        self._declared.defaults(graph)
        given = dict.fromkeys((*inputs, *initializers))
        self._body(graph, given, [value.name for value in graph.output], outer, scope, what)

    def _body(
        self,
        owner: onnx.GraphProto | onnx.FunctionProto,
        given: Iterable[str],
        outputs: Sequence[str],
        outer: Outer,
        scope: _Scope,
        what: str,
    ) -> None:
        """Checks nodes and names: each value has one producer, and each reader finds its value."""
        where = f" in {what}" if what else ""
        seen = set(given)
        produced = [name for node in owner.node for name in node.output if name]
        if (twice := _twice([*seen, *produced])) is not None:
            raise invalid(f"the value {twice!r}{where} has more than one producer")
        everything = seen.union(produced)
        for node in wanted(owner.node):
            label = f"layer {node.name or next(iter(node.output), node.op_type)!r}{where}"
            self._node(node, scope, label)
            for name in node.input:
                if not name or name in seen:
                    continue
                if any(name in before for before, _ in outer):
                    continue
                if name not in everything and not any(name in values for _, values in outer):
                    raise invalid(f"{label} reads {name!r}, which nothing produces")
                self.sorted = False
            is_custom = canonical_domain(node.domain) not in ("", "ai.onnx.ml")
            for attribute in node.attribute:
                around = ((seen, everything), *outer)
                self.attribute(attribute, scope, around, label, is_custom=is_custom)
            seen.update(node.output)
        if (twice := _twice(outputs)) is not None:
            raise invalid(f"the output {twice!r}{where} is listed twice; give one an Identity")
        for name in outputs:
            if name not in everything:
                raise invalid(
                    f"the output {name!r}{where} is not produced there; if it comes from an "
                    "outer graph, give it an Identity"
                )

    def _node(self, node: onnx.NodeProto, scope: _Scope, label: str) -> None:
        self._declared.node(node, label)
        if not node.op_type:
            raise invalid(f"{label} has no operator")
        domain = canonical_domain(node.domain)
        if domain not in scope.opsets:
            raise invalid(
                f"{label} uses the domain {domain!r}, for which there is no opset_import; add one"
            )
        if node.metadata_props or node.device_configurations:
            drop_metadata(node)
        given = {attribute.name for attribute in node.attribute}
        if len(given) != len(node.attribute):
            raise invalid(f"{label} has an attribute twice")
        is_call = (domain, node.op_type, node.overload) in self._functions
        self._declared.lists(node.attribute, label, short=is_call or has_short_lists(node))
        if not is_call:
            demands = demands_of(node.op_type, scope.opsets[domain], domain)
            if lacking := demands.required - given:
                raise invalid(f"{label} lacks the attribute {min(lacking)!r} of {node.op_type}")
            for each in node.attribute:
                kind = demands.kinds.get(each.name, each.type)
                if each.type not in (kind, onnx.AttributeProto.UNDEFINED):  # checked below
                    raise invalid(
                        f"attribute {each.name!r} of {label} has the type {kind_name(each.type)}, "
                        f"and {node.op_type} takes {kind_name(kind)}"
                    )
                is_number = each.name in demands.kinds and kind == _INT and not each.ref_attr_name
                if is_number and (wrong := wrong_number(each.name, each.i, len(node.input))):
                    raise invalid(f"attribute {each.name!r} of {label} {wrong}")
            if (node.op_type, domain) == ("Constant", "") and not (
                len(given) == 1 and given <= {*demands.kinds}
            ):
                raise invalid(f"{label} needs exactly one attribute, its value")
            if (node.op_type, domain) == ("ZipMap", "ai.onnx.ml"):
                raise invalid(f"{label} makes maps of its input inside the network; {WAY_OUT}")
            if (node.op_type, domain) == ("Split", ""):
                check_split(node, scope.opsets[domain], label)
            if (missing := demands.missing_input(node.input)) is not None:
                raise invalid(f"{label} lacks the input {missing!r} of {node.op_type}")
            if not domain:
                check_bodies(node, scope.opsets[domain], label)
            most = demands.outputs
            if len(node.output) > most:
                raise invalid(
                    f"{label} has {len(node.output)} outputs, but {node.op_type} makes {most} here"
                )

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
        self._declared.name(attribute.name, "an attribute's name")
        if not attribute.name:
            raise invalid(f"{label} has an attribute without a name")
        kind = attribute.type
        if attribute.ref_attr_name:
            if not scope.in_function:
                raise invalid(f"{what} refers to a function's attribute, but is not in a function")
        elif kind in (_GRAPH, _GRAPHS):
            for body in (attribute.g,) if kind == _GRAPH else attribute.graphs:
                if len(outer) > self._limits.depth:
                    raise invalid(f"graphs are nested more than {self._limits.depth} deep")
                self.graph(body, scope, what, outer)
        elif kind in (_TENSOR, _TENSORS):
            for tensor in (attribute.t,) if kind == _TENSOR else attribute.tensors:
                self._tensors.check(tensor, what)
        elif kind in _SPARSE:
            if kind != _SPARSE[0] or attribute.name != "sparse_value" or is_custom:
                raise invalid(f"{what} is a sparse tensor, which is not supported; store it dense")
            attribute.t.CopyFrom(self._tensors.dense(attribute.sparse_tensor, what))
            attribute.name, attribute.type = "value", _TENSOR
            attribute.ClearField("sparse_tensor")
        elif kind in _TYPES:
            for tp in (attribute.tp,) if kind == _TYPES[0] else attribute.type_protos:
                self._declared.type(tp, what)
        elif kind in _STRINGS and not is_custom:
            for text in (attribute.s,) if kind == _STRINGS[0] else attribute.strings:
                try:
                    text.decode()
                except UnicodeDecodeError:
                    raise invalid(f"{what} is not UTF-8") from None
        elif kind == onnx.AttributeProto.UNDEFINED or kind not in _KNOWN_KINDS:
            raise invalid(f"{what} has no known type")


_KNOWN_KINDS = frozenset(onnx.AttributeProto.AttributeType.values())


def _repeat_outputs(graph: onnx.GraphProto) -> None:
    """Gives each output that is listed before an Identity, so that all have names of their own."""
    seen: set[str] = set()
    for at, output in enumerate(graph.output):
        if output.name and output.name in seen:
            again = f"{output.name}/again{at}"
            graph.node.add(op_type="Identity", input=[output.name], output=[again])
            output.name = again
        seen.add(output.name)


def _twice(names: Sequence[str]) -> str | None:
    """A name that is empty or occurs twice, if any."""
    seen: set[str] = set()
    for name in names:
        if not name or name in seen:
            return name
        seen.add(name)
    return None
