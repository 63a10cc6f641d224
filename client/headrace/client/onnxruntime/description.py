"""What ONNX Runtime says of a network: inputs, outputs, and what the model says of itself."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.client.external_data import NotAModelError, fields
from headrace.client.info import Port
from headrace.protobuf.fields import LENGTH_DELIMITED, read_varint
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import dtypes

# Of onnx.proto's ModelProto, and of its GraphProto and StringStringEntryProto.
_VERSION, _GRAPH, _PROPERTY = 5, 7, 14
_TEXTS: Final[Mapping[int, str]] = {2: "producer_name", 4: "domain", 6: "description"}
_GRAPH_TEXTS: Final[Mapping[int, str]] = {2: "graph_name", 10: "graph_description"}


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or an output.

    Attributes:
        shape: for each axis its size, its symbol, or None.
        type: for example ``tensor(float)``.
    """

    name: str
    shape: list[int | str | None]
    type: str


def node_arg(port: Port) -> NodeArg:
    """An input or an output in ONNX Runtime's words."""
    kind = "unknown"
    if port.dtype != "unknown":
        kind = pb.DataType.Name(dtypes.parse_name(port.dtype)).lower()
    text = f"tensor({kind})"
    if port.kind == "sequence":
        text = f"seq({text})"
    return NodeArg(
        port.name,
        list(port.shape or ()) if port.kind == "tensor" else [],
        f"optional({text})" if port.optional else text,
    )


@dataclass(slots=True)
class ModelMetadata:
    """What a model says of itself."""

    custom_metadata_map: dict[str, str] = field(default_factory=dict)
    description: str = ""
    domain: str = ""
    graph_description: str = ""
    graph_name: str = ""
    producer_name: str = ""
    version: int = 0


def metadata_of(model: str | os.PathLike[str] | bytes) -> ModelMetadata:
    """What a model says of itself: the whole of it, without limits of the server's.

    Args:
        model: a file, which is not read as a whole, or bytes.
    """
    if isinstance(model, bytes):
        return _read(model)
    with (
        Path(model).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return _read(data)


def _read(data: bytes | mmap.mmap) -> ModelMetadata:
    metadata = ModelMetadata()
    with suppress(NotAModelError, IndexError):  # the server says what is wrong with it
        for number, wire_type, _, start, stop in fields(data, 0, len(data)):
            if number == _VERSION:
                metadata.version = read_varint(data, start)[0]
            elif wire_type != LENGTH_DELIMITED:
                continue
            elif number in _TEXTS:
                setattr(metadata, _TEXTS[number], _text(data, start, stop))
            elif number == _GRAPH:
                for each in fields(data, start, stop):
                    if each.number in _GRAPH_TEXTS and each.wire_type == LENGTH_DELIMITED:
                        name = _GRAPH_TEXTS[each.number]
                        setattr(metadata, name, _text(data, each.value, each.stop))
            elif number == _PROPERTY:
                entry = {each.number: each for each in fields(data, start, stop)}
                key, value = (
                    _text(data, entry[part].value, entry[part].stop) if part in entry else ""
                    for part in (1, 2)
                )
                metadata.custom_metadata_map[key] = value
    return metadata


def _text(data: bytes | mmap.mmap, start: int, stop: int) -> str:
    return data[start:stop].decode("utf-8", "replace")
