"""Joins a model and the files with its weights into the one serialised model that a server takes.

This walks the wire format without parsing it. Where a tensor names a file, the piece of that file
replaces the name, and is read while it is sent. So the weights may exceed protobuf's limit of 2 GiB
and the memory, and the server sees no file name. A model may name files inside its folder only, so
that a model from elsewhere cannot make you send other files.

The wire format: https://protobuf.dev/programming-guides/encoding/. Field numbers: onnx.proto.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from headrace.client.errors import invalid
from headrace.protobuf.fields import LENGTH_DELIMITED, VARINT, header, read_field, read_varint
from headrace.wire import dtypes

READ_BYTES: Final = 256 * 1024

_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _FUNCTION, _TENSOR = range(6)
_CHILDREN: Final[Mapping[int, Mapping[int, int]]] = {
    _MODEL: {7: _GRAPH, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: _TENSOR},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH},
    _FUNCTION: {7: _NODE, 11: _ATTRIBUTE},
}
"""The fields of each message that lead to tensors."""

_DIMS, _DATA_TYPE, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 9, 13, 14
_EXTERNAL = 1
_KEY = b"location"  # the key of a tensor's file name
_MAX_DEPTH = 200  # messages in messages: the server takes fewer
_PACKED_BITS = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes of a file that are read when they are sent.

    Attributes:
        name: the file's name as the model has it.
        version: shows whether the file has changed since it was checked.
    """

    path: Path
    name: str
    version: tuple[int, ...]
    offset: int
    size: int

    def read(self) -> Iterator[bytes]:
        """Yields the bytes in pieces.

        Raises:
            InvalidArgument: the file cannot be read, or has changed meanwhile.
        """
        try:
            with self.path.open("rb", buffering=0) as file:
                for start in range(self.offset, self.offset + self.size, READ_BYTES):
                    wanted = min(READ_BYTES, self.offset + self.size - start)
                    piece = os.pread(file.fileno(), wanted, start)
                    if len(piece) < wanted or _version(os.fstat(file.fileno())) != self.version:
                        raise invalid(
                            "model", f"{self.name!r} was changed while it was sent; send it again"
                        )
                    yield piece
        except OSError as error:
            raise invalid("model", f"cannot read {self.name!r}: {error.strerror}") from None


Piece: TypeAlias = "bytes | memoryview | FilePiece"


def piece_size(piece: Piece) -> int:
    """In bytes."""
    return piece.size if isinstance(piece, FilePiece) else len(piece)


def inlined(data: bytes, folder: Path) -> list[Piece]:
    """The pieces of the model `data`, each tensor with its data inside.

    Args:
        folder: the model's folder. The files have to be in it or below it.

    Raises:
        InvalidArgument: a tensor names a file outside the folder, or a file that does not exist,
            is too short, or is no regular file.
    """
    if _KEY not in data:
        return [data]
    try:
        return _Inliner(data, folder).message(_MODEL, 0, len(data), 0) or [data]
    except (IndexError, NotAModelError):
        return [data]  # the server says what is wrong with it


class NotAModelError(Exception):
    """The bytes are not a model that this could read."""


class Field(NamedTuple):
    """Where a field's tag begins, and where its value begins and ends."""

    number: int
    wire_type: int
    start: int
    value: int
    stop: int


def fields(data: bytes | mmap.mmap, position: int, end: int) -> Iterator[Field]:
    """The fields of the message at ``data[position:end]``, in order.

    Raises:
        NotAModelError, IndexError: there is no message.
    """
    while position < end:
        start = position
        tag, value, position = read_field(data, start, end)
        if position > end:
            raise NotAModelError
        yield Field(tag >> 3, tag & 7, start, value, position)


class _Inliner:
    def __init__(self, data: bytes, folder: Path) -> None:
        self._data = data
        self._view = memoryview(data)
        self._folder = Path(os.path.realpath(folder))
        self._files: dict[str, tuple[Path, os.stat_result]] = {}

    def message(self, kind: int, position: int, end: int, depth: int) -> list[Piece] | None:
        """The pieces that replace ``data[position:end]``; None if it stays as it is."""
        if depth > _MAX_DEPTH:
            raise NotAModelError
        children = _CHILDREN[kind]
        pieces: list[Piece] = []
        kept = position
        for number, wire_type, start, value, stop in fields(self._data, position, end):
            child = children.get(number)
            if child is None or wire_type != LENGTH_DELIMITED:
                continue
            if child == _TENSOR:
                replaced = self._tensor(value, stop)
            else:
                replaced = self.message(child, value, stop, depth + 1)
            if replaced is not None:
                size = sum(map(piece_size, replaced))
                pieces += (self._view[kept:start], header(number, size), *replaced)
                kept = stop
        return [*pieces, self._view[kept:end]] if pieces else None

    def _tensor(self, position: int, end: int) -> list[Piece] | None:
        """The TensorProto with its data inside; None if it has them already, or is not valid."""
        parts = list(fields(self._data, position, end))
        entries: dict[str, str] = {}
        dims: list[int] = []
        data_type = location = 0
        for number, wire_type, _, value, stop in parts:
            if number == _DATA_LOCATION and wire_type == VARINT:
                location = read_varint(self._data, value)[0]
            elif number == _DATA_TYPE and wire_type == VARINT:
                data_type = read_varint(self._data, value)[0]
            elif number == _DIMS:
                while value < stop:
                    size, value = read_varint(self._data, value)
                    dims.append(size)
            elif number == _EXTERNAL_DATA and wire_type == LENGTH_DELIMITED:
                entries |= [self._entry(value, stop)]
            elif number == _RAW_DATA:
                return None
        if location != _EXTERNAL or "location" not in entries:
            return None
        piece = self._file_piece(entries, dims, data_type)
        kept: list[Piece] = [
            self._view[field.start : field.stop]
            for field in parts
            if field.number not in (_EXTERNAL_DATA, _DATA_LOCATION)
        ]
        return [*kept, header(_RAW_DATA, piece.size), piece]

    def _entry(self, position: int, end: int) -> tuple[str, str]:
        """Key and value of a StringStringEntryProto."""
        texts = {1: "", 2: ""}
        for number, _, _, value, stop in fields(self._data, position, end):
            texts[number] = self._data[value:stop].decode("utf-8", "surrogateescape")
        return texts[1], texts[2]

    def _file_piece(self, entries: Mapping[str, str], dims: list[int], data_type: int) -> FilePiece:
        name = entries["location"]
        path, status = self._file(name)
        try:
            offset = int(entries.get("offset", "0"))
            size = int(entries["length"]) if "length" in entries else _size(dims, data_type)
        except ValueError:
            raise invalid("model", f"offset or length of the data in {name!r} is wrong") from None
        if offset < 0 or size < 0 or offset + size > status.st_size:
            raise invalid(
                "model",
                f"the model's weights are at bytes {offset} to {offset + size} of {name!r}, which "
                f"has {status.st_size}; save the model again",
            )
        return FilePiece(path, name, _version(status), offset, size)

    def _file(self, name: str) -> tuple[Path, os.stat_result]:
        """Path and status of the file that the model calls `name`, inside the folder."""
        if name in self._files:
            return self._files[name]
        named = Path(name)
        if named.is_absolute() or ".." in named.parts or "\0" in name:
            raise _outside(name)
        path = Path(os.path.realpath(self._folder / named))
        if not path.is_relative_to(self._folder):
            raise _outside(name)
        try:
            status = path.stat()
        except OSError as error:
            raise invalid(
                "model",
                f"the model's weights are in {name!r} beside it, which cannot be read: "
                f"{error.strerror}; put it there, or save the model with its weights inside",
            ) from None
        if not stat.S_ISREG(status.st_mode):
            raise invalid("model", f"the model's weights are in {name!r}, which is not a file")
        self._files[name] = path, status
        return path, status


def _size(dims: list[int], data_type: int) -> int:
    """The size of a tensor in bytes.

    Raises:
        ValueError: elements of this type have no fixed size.
    """
    if data_type == dtypes.STRING:
        raise ValueError
    dtype = dtypes.numpy_type(data_type)
    bits = _PACKED_BITS.get(dtype.name, 8 * dtype.itemsize)
    return (math.prod(dims) * bits + 7) // 8


def _version(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _outside(name: str) -> Exception:
    return invalid(
        "model",
        f"the model's weights are in {name!r}, outside its folder; only files in the folder are "
        "sent: put the file there, and save the model with its name alone",
    )
