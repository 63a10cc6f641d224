"""Where a network comes from: a file, bytes, an object with SerializeToString, the repository."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from headrace.client.errors import invalid

CHUNK_BYTES: Final = 256 * 1024
INLINE_BYTES: Final = 512 * 1024
"""Models larger than this are uploaded in chunks, so that no message limit stops them. Chunks fit
any limit that leaves room for a request."""

_SEARCH_BYTES = 64 * 1024 * 1024  # a model whose weights lie elsewhere is smaller


class SupportsSerializeToString(Protocol):
    """Such as an onnx.ModelProto."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's name


Model: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | SupportsSerializeToString"
)
Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes sent and bytes in all, on a thread of gRPC's."""


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """A model's bytes, and the name that its file suggests for the network."""

    data: bytes
    suggested_name: str = ""


def read_model(model: Model | Any) -> ModelBytes:
    """The bytes of a model.

    Raises:
        InvalidArgument: no such file, weights outside the file, or something that is no model.
    """
    if isinstance(model, str | os.PathLike):
        return _read_file(Path(model))
    if isinstance(model, bytes | bytearray | memoryview):
        return ModelBytes(bytes(model))
    if hasattr(model, "SerializeToString"):
        return ModelBytes(model.SerializeToString())
    kind = type(model).__name__
    raise invalid("model", f"a {kind} is not a model; pass a path, bytes, or an onnx.ModelProto")


def read_bytes(
    content: str | os.PathLike[str] | bytes | bytearray | memoryview, field: str
) -> bytes:
    """Bytes as they are, or those of the file at a path.

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


def suggested_name(path: str | os.PathLike[str]) -> str:
    """What to call a network that a file holds: its name without the suffix."""
    # A network's name is [A-Za-z0-9][A-Za-z0-9._-]{0,127}.
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem).lstrip("._-")[:128]


def chunks(data: bytes, progress: Progress | None = None) -> Iterator[bytes]:
    """The data in pieces of CHUNK_BYTES; at least one, which may be empty."""
    for start in range(0, max(len(data), 1), CHUNK_BYTES):
        piece = data[start : start + CHUNK_BYTES]
        yield piece
        if progress is not None:
            progress(start + len(piece), len(data))


def _read_file(path: Path) -> ModelBytes:
    data = read_bytes(path, "model")
    if outside := _external_data(path, data):
        raise invalid(
            "model",
            f"the weights of {path} lie outside it, in {outside}; save the model with its weights "
            "inside, or put the folder into the server's model repository",
        )
    return ModelBytes(data, suggested_name(path))


def _external_data(path: Path, data: bytes) -> str | None:
    """The file beside a model that holds its weights, if the model names one.

    A guess from bytes, without parsing ONNX; the server finds what this overlooks.
    """
    if len(data) > _SEARCH_BYTES or b"\x0a\x08location\x12" not in data:
        return None
    for sibling in path.parent.iterdir():
        name = sibling.name.encode("utf-8", "surrogateescape")
        # A StringStringEntryProto: key "location", then the value with its length.
        if len(name) < 128 and b"location\x12" + bytes([len(name)]) + name in data:
            return sibling.name
    return None
