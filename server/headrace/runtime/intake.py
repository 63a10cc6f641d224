"""Models from outside: what they may be, and what is wrong with those that are not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from headrace.runtime import naming, provenance
from headrace.runtime.errors import InvalidModel


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on a model from outside.

    Attributes:
        model_bytes: of the serialised model.
        structure_bytes: of everything in it but the tensors' raw data.
        fields: protobuf fields in the serialised model; each costs memory once it is parsed.
        nodes: nodes of the graph, its bodies and the functions, as written.
        inlined_nodes: nodes once every call of a function is replaced by the function's nodes.
        initializer_bytes: of all tensors together, external data included.
        depth: graphs within graphs, and functions calling functions.
        name_length: characters of any name.
    """

    model_bytes: int = 2**31 - 1
    structure_bytes: int = 256 * 2**20
    fields: int = 5_000_000
    nodes: int = 100_000
    inlined_nodes: int = 200_000
    initializer_bytes: int = 16 * 2**30
    depth: int = 24
    name_length: int = 4096


def from_bytes(data: bytes, limits: Limits) -> ir.Model:
    """The model of a serialised ModelProto, checked, its layers named."""
    try:
        proto = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise InvalidModel("not an ONNX model", field="model") from None
    model = ir.from_proto(proto)
    adopt(model)
    return model


def from_file(path: Path, folder: Path, limits: Limits) -> ir.Model:
    """The model of a file, external data inside `folder` loaded lazily."""
    return from_bytes(path.read_bytes(), limits)


def adopt(model: ir.Model) -> None:
    """Drops metadata that only we may write and names the layers."""
    for graph in model.graphs():
        drop_metadata(graph.metadata_props)
        for node in graph:
            drop_metadata(node.metadata_props)
    naming.name_layers(model.graph)


def drop_metadata(properties: dict[str, str]) -> None:
    """Drops the keys that only we may write."""
    for key in [key for key in properties if key.startswith(provenance.METADATA_PREFIX)]:
        del properties[key]
