"""Where a network comes from: a file, bytes, an object with SerializeToString, the repository."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from headrace.client.errors import InvalidArgument, invalid
from headrace.client.external_data import FilePiece, Piece, inlined, piece_size

CHUNK_BYTES: Final = 256 * 1024
INLINE_BYTES: Final = 512 * 1024
"""Models larger than this are uploaded in chunks, so that no limit on messages stops them. A chunk
fits into any limit that leaves room for a request."""


class SupportsSerializeToString(Protocol):
    """An object that can serialise itself, for example an onnx.ModelProto."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's name


Model: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | SupportsSerializeToString"
)
Progress: TypeAlias = Callable[[int, int], None]
"""A function that gRPC's thread calls with the bytes sent and the bytes in all."""


class ModelContent:
    """A model's bytes, in pieces that may lie in files.

    Attributes:
        error: why `chunks` ended before the end.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self.size = sum(map(piece_size, pieces))
        self.error: InvalidArgument | None = None

    def chunks(self, progress: Progress | None = None) -> Iterator[bytes]:
        """The bytes in chunks of CHUNK_BYTES; at least one, which may be empty.

        gRPC logs the errors of an iterator. So this one ends instead of raising, and keeps the
        `error`.
        """
        sent = 0
        try:
            for chunk in _chunks(self._pieces):
                yield chunk
                sent += len(chunk)
                if progress is not None:
                    progress(sent, self.size)
        except InvalidArgument as error:
            self.error = error

    def read(self) -> bytes:
        """All bytes.

        Raises:
            InvalidArgument: a file cannot be read, or was changed.
        """
        return b"".join(_chunks(self._pieces))


def read_model(model: Model | Any) -> ModelContent:
    """The bytes of a model with its external data inside.

    Raises:
        InvalidArgument: the file does not exist, its weights cannot be sent, or the argument is no
            model.
    """
    if isinstance(model, str | os.PathLike):
        data = read_bytes(model, "model")
        return ModelContent(inlined(data, Path(model).parent))
    if isinstance(model, bytes | bytearray | memoryview):
        return ModelContent([bytes(model)])
    if hasattr(model, "SerializeToString"):
        return ModelContent([model.SerializeToString()])
    kind = type(model).__name__
    raise invalid("model", f"a {kind} is not a model; pass a path, bytes, or an onnx.ModelProto")


def read_bytes(
    content: str | os.PathLike[str] | bytes | bytearray | memoryview, field: str
) -> bytes:
    """The bytes themselves, or the bytes of the file at a path.

    Raises:
        InvalidArgument: the file cannot be read.
    """
    if isinstance(content, str | os.PathLike):
        try:
            return Path(content).read_bytes()
        except OSError as error:
            reason = error.strerror or str(error)
            raise invalid(field, f"cannot read {os.fspath(content)}: {reason}") from None
    return bytes(content)


def network_name(name: str, source: Model | Any) -> str:
    """`name`, or if it is empty the default name: that of the file without the suffix.

    Raises:
        InvalidArgument: there is neither.
    """
    if not name and isinstance(source, str | os.PathLike):
        # A network's name is [A-Za-z0-9][A-Za-z0-9._-]{0,127}.
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).stem).lstrip("._-")[:128]
    if not name:
        raise invalid("name", "the network has no name: pass name= (command line: --name)")
    return name


def _chunks(pieces: Iterable[Piece]) -> Iterator[bytes]:
    waiting = bytearray()
    for piece in pieces:
        for part in _parts(piece):
            if len(waiting) + len(part) > CHUNK_BYTES:
                taken = CHUNK_BYTES - len(waiting)
                yield b"".join((waiting, part[:taken]))
                waiting = bytearray(part[taken:])
            else:
                waiting += part
    yield bytes(waiting)


def _parts(piece: Piece) -> Iterator[bytes | memoryview]:
    """The bytes of `piece`, at most CHUNK_BYTES at a time."""
    if isinstance(piece, FilePiece):
        yield from piece.read()
        return
    for start in range(0, len(piece), CHUNK_BYTES):
        yield memoryview(piece)[start : start + CHUNK_BYTES]
