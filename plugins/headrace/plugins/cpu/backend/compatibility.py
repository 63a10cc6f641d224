"""Stamps networks newer than the backend with versions that it reads, if that changes nothing.

ONNX Runtime refuses a model whose IR version or operator set is newer than itself. Most operators
are the same in both sets. A network that has only such operators is stamped with the older set.
This module finds out by trying which versions the backend reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import onnx
import onnx_ir as ir
from onnx import defs

from headrace.runtime.errors import UnsupportedLayer, UnsupportedLayers
from headrace.runtime.intake.naming import walk
from headrace.runtime.network.type_names import type_text
from headrace.runtime.system.graph_memory import watched

_OLDEST_IR_VERSION = 3
_ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_COMPLETE = 26
"""Up to this operator set, each backend that we serve has kernels of the sets that it reads. ONNX
Runtime 1.32 reads set 28 and lacks kernels of layers that all earlier sets have."""


class Compatibility:
    """The newest versions that a backend reads. Thread-safe. A process tries them once.

    Args:
        device: the name of the backend's device, for messages.
        loads: says whether the backend loads a serialised model.
    """

    def __init__(self, device: str, loads: Callable[[bytes], bool]) -> None:
        self._device = device
        self._loads = loads

    @property
    def ir_version(self) -> int:
        """The newest IR version that the backend reads."""
        return _newest_ir_version(self._loads)

    def opset(self, domain: str) -> int | None:
        """The newest version of one of ONNX's own operator sets that the backend reads. None for
        another domain, because only the backend knows its versions."""
        return _newest_opset(self._loads, domain) if domain in _ONNX_DOMAINS else None

    def version(self, domain: str, version: int) -> int:
        """The version that a network's operator set is stamped with."""
        newest = self.opset(domain)
        return version if newest is None else min(version, newest)

    def reason(self, node: ir.Node, version: int) -> str | None:
        """Why a node of operator set `version` means something else in the backend's newest set;
        None if it means the same. Types of values must have been inferred."""
        newest = self.opset(node.domain)
        if newest is None or version <= newest:
            return None
        return _difference(node, version, newest)

    def lowered(self, model: ir.Model) -> ir.Model:
        """The model as the backend reads it: `model` itself, or a copy stamped with older versions.
        The types of `model` must have been inferred.

        Raises:
            UnsupportedLayers: operators have changed since; lists their layers.
        """
        if model.ir_version <= self.ir_version and all(
            self.version(domain, version) == version
            for scope in _scopes(model)
            for domain, version in scope.opset_imports.items()
        ):
            return model
        model = watched(model.clone())
        changed = [
            UnsupportedLayer(node.name or "", node.op_type, reason)
            for node, version in _nodes(model)
            if (reason := self.reason(node, version)) is not None
        ]
        if changed:
            raise UnsupportedLayers(self._device, changed)
        model.ir_version = min(model.ir_version, self.ir_version)
        for scope in _scopes(model):
            for domain, version in scope.opset_imports.items():
                scope.opset_imports[domain] = self.version(domain, version)
        return model


@cache
def _newest_ir_version(loads: Callable[[bytes], bool]) -> int:
    return _newest(
        onnx.IR_VERSION,
        _OLDEST_IR_VERSION,
        lambda version: loads(identity(version, {"": 7})),
    )


@cache
def _newest_opset(loads: Callable[[bytes], bool], domain: str) -> int:
    ir_version = _newest_ir_version(loads)
    if domain in ("", "ai.onnx"):
        return _newest(
            defs.onnx_opset_version(),
            1,
            lambda version: (
                loads(identity(ir_version, {domain: version}))
                and (version <= _COMPLETE or loads(dequantized(ir_version, version)))
            ),
        )
    return _newest(
        _known_version(domain),
        1,
        lambda version: loads(identity(ir_version, {"": 7, domain: version})),
    )


def _newest(newest: int, oldest: int, loads: Callable[[int], bool]) -> int:
    """The newest version from `newest` down that loads; `oldest` if none does."""
    return next((version for version in range(newest, oldest, -1) if loads(version)), oldest)


def _known_version(domain: str) -> int:
    return max(
        (s.since_version for s in defs.get_all_schemas_with_history() if s.domain == domain),
        default=1,
    )


def identity(ir_version: int, opset_imports: dict[str, int]) -> bytes:
    """The smallest possible model, serialised."""
    return tiny("(float[1] x) => (float[1] y) { y = Identity(x) }", ir_version, opset_imports)


def dequantized(ir_version: int, version: int) -> bytes:
    """A network of a DequantizeLinear, which changes with nearly every operator set."""
    text = "(uint8[1] x, float s) => (float[1] y) { y = DequantizeLinear(x, s) }"
    return tiny(text, ir_version, {"": version})


def tiny(graph: str, ir_version: int, opset_imports: dict[str, int]) -> bytes:
    """A model of a graph in ONNX's syntax, serialised."""
    sets = ", ".join(f'"{domain}" : {version}' for domain, version in opset_imports.items())
    header = f"<ir_version: {ir_version}, opset_import: [{sets}]>"
    data: bytes = onnx.parser.parse_model(f"{header} g {graph}").SerializeToString()
    return data


def _scopes(model: ir.Model) -> list[ir.Graph | ir.Function]:
    """The graph and the functions, which import operator sets."""
    return [model.graph, *model.functions.values()]


def _nodes(model: ir.Model) -> Iterator[tuple[ir.Node, int]]:
    """Every node with the version of its operator set."""
    for scope in _scopes(model):
        for node in walk(scope):
            yield node, scope.opset_imports.get(node.domain, 1)


def _difference(node: ir.Node, version: int, newest: int) -> str | None:
    """How the node's operator at `version` differs from the one at `newest`, as far as the node
    uses it; None if it does not differ.

    A version of an operator may add types, attributes and inputs. A node that uses none of them
    means the same in both versions.
    """
    known = defs.onnx_opset_version()
    if node.domain in ("", "ai.onnx") and version > known:
        return (
            f"operator set {version} is too new: the backend reads {newest}, and this server "
            f"compares operator sets up to {known}"
        )
    try:
        schema = defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return None  # not an operator of ONNX: the backend decides
    if schema.since_version <= newest:
        return None
    prefix = f"{node.op_type} of operator set {schema.since_version}"
    backend = f"operator set {newest}, the backend's newest,"
    try:
        older = defs.get_schema(node.op_type, newest, node.domain)
    except defs.SchemaError:
        return f"{prefix} is newer than the backend, which reads operator set {newest}"
    added = [
        name
        for name, attribute in node.attributes.items()
        if not _has_attribute(older, name, attribute)
    ]
    if added:
        return f"{prefix} has attributes that {backend} lacks: {', '.join(added)}"
    if len(node.inputs) > older.max_input or len(node.outputs) > older.max_output:
        return f"{prefix} has inputs or outputs that {backend} lacks"
    return _type_difference(node, older, prefix, backend)


def _has_attribute(schema: defs.OpSchema, name: str, attribute: ir.Attr) -> bool:
    declared = schema.attributes.get(name)
    return declared is not None and declared.type == getattr(
        defs.OpSchema.AttrType, attribute.type.name
    )


def _type_difference(node: ir.Node, older: defs.OpSchema, prefix: str, backend: str) -> str | None:
    for values, formals in ((node.inputs, older.inputs), (node.outputs, older.outputs)):
        for index, value in enumerate(values):
            if value is None or not value.name:
                continue
            allowed = formals[min(index, len(formals) - 1)].types
            if value.type is None:
                return f"{prefix} differs from {backend} and the types are unknown"
            if type_text(value.type) not in allowed:
                return f"{prefix} takes {type_text(value.type)}; {backend} does not"
    return None
