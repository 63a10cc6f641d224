"""What an exported network keeps of its subgraphs: where each runs, and its device's own bytes.

    magic, format version, length of header     fixed size, big-endian
    header                                      JSON: a frame for each subgraph
    native                                      each subgraph's own bytes, one after the other
    SHA-256                                     of all before

It travels inside the blob, beside the whole network and under the same MAC. A subgraph whose device
exports nothing has no bytes here: its frame says which layers and ends make it, its ONNX is cut out
of the network once more, and its device compiles that. So the weights travel once.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from headrace.plugins.hetero.flow import Ends
from headrace.runtime.errors import InvalidArgument

FORMAT_VERSION = 1
_MAGIC = b"\x89HETERO\r\n\x1a\n"
_PREFIX = struct.Struct(">11sII")
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Frame:
    """One subgraph.

    Attributes:
        device: as the list names it.
        layers: its nodes in the network's graph.
        native: empty if the device exports nothing.
    """

    device: str
    layers: tuple[str, ...]
    ends: Ends
    architecture: str
    backend_version: str
    native: bytes = field(default=b"", repr=False)


def write(frames: Iterable[Frame]) -> bytes:
    """The container of the frames, in their order."""
    kept = tuple(frames)
    header = json.dumps([_facts(frame) for frame in kept], separators=(",", ":")).encode()
    prefix = _PREFIX.pack(_MAGIC, FORMAT_VERSION, len(header))
    body = b"".join((prefix, header, *(frame.native for frame in kept)))
    return body + hashlib.sha256(body).digest()


def read(data: bytes) -> tuple[Frame, ...]:
    """
    Raises:
        InvalidArgument: these are not the bytes of a container, or of another format, or damaged.
    """
    if len(data) < _PREFIX.size + _DIGEST_BYTES or not data.startswith(_MAGIC):
        _refuse("they do not start as those of HETERO do")
    _, version, header_size = _PREFIX.unpack_from(data)
    if version != FORMAT_VERSION:
        _refuse(f"their format is version {version}, this server reads {FORMAT_VERSION}")
    end = len(data) - _DIGEST_BYTES
    if hashlib.sha256(memoryview(data)[:end]).digest() != data[end:]:
        _refuse("they are damaged: their SHA-256 does not match")
    position = _PREFIX.size + header_size
    frames = []
    try:
        for facts in json.loads(data[_PREFIX.size : position]):
            size = int(facts["native_bytes"])
            frames.append(_frame(facts, data[position : position + size]))
            position += size
    except (ValueError, KeyError, TypeError) as error:
        raise _refusal("their header cannot be read") from error
    if position != end:
        _refuse("their lengths do not add up")
    return tuple(frames)


def _facts(frame: Frame) -> dict[str, Any]:
    return {
        "device": frame.device,
        "layers": frame.layers,
        "inputs": frame.ends.inputs,
        "outputs": frame.ends.outputs,
        "architecture": frame.architecture,
        "backend_version": frame.backend_version,
        "native_bytes": len(frame.native),
    }


def _frame(facts: Mapping[str, Any], native: bytes) -> Frame:
    return Frame(
        device=str(facts["device"]),
        layers=tuple(map(str, facts["layers"])),
        ends=Ends(tuple(map(str, facts["inputs"])), tuple(map(str, facts["outputs"]))),
        architecture=str(facts["architecture"]),
        backend_version=str(facts["backend_version"]),
        native=native,
    )


def _refuse(why: str) -> NoReturn:
    raise _refusal(why)


def _refusal(why: str) -> InvalidArgument:
    return InvalidArgument(f"the subgraphs' bytes cannot be read: {why}", field="blob")
