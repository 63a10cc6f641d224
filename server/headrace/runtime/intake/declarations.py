"""What a model from outside declares: names, operator sets, and the types of its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import onnx
import onnx_ir as ir
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.provenance import METADATA_PREFIX
from headrace.runtime.intake.zip_maps import WAY_OUT

_LISTS: Final[Mapping[int, str]] = {
    onnx.AttributeProto.INTS: "ints",
    onnx.AttributeProto.FLOATS: "floats",
    onnx.AttributeProto.STRINGS: "strings",
}
"""The field of each kind of attribute that holds a list of plain values."""


class Declarations:
    """Checks declarations. All methods raise InvalidModel, and the error names what is wrong.

    Attributes:
        texts: the number of texts in the lists so far.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.texts = 0

    def values(self, values: Iterable[onnx.ValueInfoProto]) -> None:
        """Checks the names of a graph's or function's values, and their types if they have any."""
        for value in values:
            self.name(value.name, "a value's name")
            if value.metadata_props:
                drop_metadata(value)
            if has_type(value.type):
                self.type(value.type, f"the value {value.name!r}")
            else:
                value.ClearField("type")  # it says only a shape

    def type(self, proto: onnx.TypeProto, what: str) -> None:
        """Checks that a type is supported and has no negative sizes."""
        kind = proto.WhichOneof("value")
        while kind in ("sequence_type", "optional_type"):
            proto = getattr(proto, kind).elem_type
            kind = proto.WhichOneof("value")
        if kind is None:
            raise invalid(f"{what} has no type")
        if kind == "map_type":
            raise invalid(f"{what} has maps; {WAY_OUT}")
        if kind != "tensor_type":
            raise invalid(f"{what} is a {kind.removesuffix('_type')}, which is not supported")
        try:
            ir.DataType(proto.tensor_type.elem_type)
        except ValueError:
            raise invalid(
                f"{what} has the unknown element type {proto.tensor_type.elem_type}"
            ) from None
        rank = len(proto.tensor_type.shape.dim)
        if rank > self._limits.rank:
            raise invalid(f"{what} has {rank} axes; at most {self._limits.rank} are supported")
        for dimension in proto.tensor_type.shape.dim:
            if dimension.dim_value < -1:
                raise invalid(f"{what} has the negative dimension {dimension.dim_value}")
            if dimension.dim_value == -1:  # some exporters write an unknown size so
                dimension.ClearField("dim_value")
            self.name(dimension.dim_param, "a dimension's name")

    def opsets(self, proto: onnx.ModelProto | onnx.FunctionProto, what: str) -> Mapping[str, int]:
        """Returns each domain's version, and checks that all are known. If a domain is imported
        more than once, the last version counts, as in ONNX Runtime. Afterwards `proto` imports each
        domain once."""
        known = onnx.defs.C.schema_version_map()
        opsets: dict[str, int] = {}
        for entry in proto.opset_import:
            domain = canonical_domain(entry.domain)
            self.name(domain, "a domain")
            newest = known[domain][1] if domain in known else 2**31
            if not 1 <= entry.version <= newest:
                raise invalid(
                    f"{what} uses opset {entry.version} of domain {domain or 'ai.onnx'!r}; 1 to "
                    f"{newest} are supported; export the model for one of these"
                )
            opsets[domain] = entry.version
        if [entry.domain for entry in proto.opset_import] != list(opsets):
            del proto.opset_import[:]
            for domain, version in opsets.items():
                proto.opset_import.add(domain=domain, version=version)
        return opsets

    def node(self, node: onnx.NodeProto, label: str) -> None:
        """Checks the number of inputs and outputs of a node, and its names."""
        if max(len(node.input), len(node.output)) > self._limits.ports:
            raise invalid(
                f"{label[:80]} has more than {self._limits.ports} inputs or outputs; let several "
                "layers share them"
            )
        for name in (node.name, node.op_type, node.domain, *node.input, *node.output):
            self.name(name, f"a name in {label[:80]}")

    def lists(self, attributes: Iterable[onnx.AttributeProto], label: str, *, short: bool) -> None:
        """Checks that no list in an attribute is too long, and adds the lists' texts to `texts`.

        Args:
            short: the lists are those of an operator that has no use for long ones, or of a
                function, which may pass them to such an operator.
        """
        most = self._limits.short_list if short else self._limits.list_length
        for attribute in attributes:
            field = _LISTS.get(attribute.type)
            if field is not None and (count := len(getattr(attribute, field))) > most:
                raise invalid(
                    f"attribute {attribute.name[:80]!r} of {label[:80]} lists {count} values; "
                    f"at most {most} are allowed there"
                )
            self.texts += len(attribute.strings)

    def name(self, name: str, what: str) -> None:
        """Checks that a name is not too long."""
        if len(name) > self._limits.name_length:
            raise invalid(f"{what} is longer than {self._limits.name_length} characters")

    def defaults(self, graph: onnx.GraphProto) -> None:
        """Checks that an input's default value, its initialiser, has the input's type."""
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        for value in graph.input:
            tensor = tensors.get(value.name)
            declared = value.type.tensor_type
            if tensor is None or not declared.elem_type:
                continue
            sizes = declared.shape.dim
            fits = not declared.HasField("shape") or (
                len(sizes) == len(tensor.dims)
                and all(
                    not size.HasField("dim_value") or size.dim_value == found
                    for size, found in zip(sizes, tensor.dims, strict=True)
                )
            )
            if tensor.data_type != declared.elem_type or not fits:
                raise invalid(
                    f"initialiser {tensor.name!r} is {ir.DataType(tensor.data_type).name}"
                    f"{list(tensor.dims)}, but the input of this name has another type or shape"
                )


def drop_metadata(
    proto: onnx.ModelProto
    | onnx.GraphProto
    | onnx.FunctionProto
    | onnx.NodeProto
    | onnx.ValueInfoProto,
) -> None:
    """Removes the metadata that only headrace may write, and what other programs wrote about
    devices: headrace assigns layers to devices by itself."""
    if isinstance(proto, onnx.ModelProto):
        proto.ClearField("configuration")
    elif isinstance(proto, onnx.NodeProto):
        proto.ClearField("device_configurations")
    kept = [entry for entry in proto.metadata_props if not entry.key.startswith(METADATA_PREFIX)]
    if len(kept) != len(proto.metadata_props):
        del proto.metadata_props[:]
        proto.metadata_props.extend(kept)


def has_type(proto: onnx.TypeProto) -> bool:
    """Whether the type says more than a shape."""
    if proto.WhichOneof("value") == "tensor_type":
        return proto.tensor_type.elem_type != onnx.TensorProto.UNDEFINED
    return proto.WhichOneof("value") is not None


def check_text(message: Message) -> None:
    """Refuses text that is not UTF-8. Protobuf returns it as bytes, and no later step expects
    bytes."""
    for descriptor, value in message.ListFields():
        if descriptor.type == FieldDescriptor.TYPE_STRING:
            for text in (value,) if isinstance(value, str | bytes) else value:
                if not isinstance(text, str):
                    raise invalid(f"{text[:80]!r} in {descriptor.full_name} is not UTF-8")
        elif descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in (value,) if isinstance(value, Message) else value:
                check_text(inner)


def canonical_domain(domain: str) -> str:
    """The canonical spelling of a domain. ONNX's own domain has two spellings."""
    return "" if domain == "ai.onnx" else domain


def invalid(message: str) -> InvalidModel:
    return InvalidModel(message, field="model")
