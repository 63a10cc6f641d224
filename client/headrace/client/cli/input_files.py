"""Files → arrays for a network's inputs: .npy, .npz, images, and raw elements.

A file is read as raw elements only if it is called raw or comes with a shape. Otherwise the header
of another kind of file would be read as data.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.client.errors import InvalidArgument, did_you_mean, invalid
from headrace.client.info import Port, Ports
from headrace.wire import dtypes
from headrace.wire.codec import Array

IMAGE_SUFFIXES: Final = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)

RAW_SUFFIXES: Final = frozenset({"", ".bin", ".raw", ".dat"})

Tell: TypeAlias = Callable[[str], None]
"""A function that is called with each change that was made to a file's values."""

_MAGIC: Final = {".npy": (b"\x93NUMPY",), ".npz": (b"PK\x03\x04", b"PK\x05\x06")}
_OBJECTS: Final = "it holds Python objects, which are not read; save strings as an array of str"


def _ignore(_: str) -> None:
    pass


def read_inputs(
    arguments: Sequence[str],
    ports: Ports,
    shapes: Mapping[str, tuple[int, ...]],
    tell: Tell = _ignore,
) -> dict[str, Array]:
    """The inputs that ``NAME=FILE`` arguments name.

    The name may be left out where the network has one input, and for an .npz file, which then
    holds inputs by name.

    Args:
        shapes: input name → shape of a raw file.

    Raises:
        InvalidArgument: an input is unknown, or a file does not fit its input.
    """
    for name in shapes:
        _check_name(name, ports)
    inputs: dict[str, Array] = {}
    for argument in arguments:
        for name, array in _arrays(argument, ports, shapes, tell):
            if name in inputs:
                raise invalid(f"inputs[{name!r}]", f"there are two files for the input {name!r}")
            inputs[name] = array
    return inputs


def _arrays(
    argument: str, ports: Ports, shapes: Mapping[str, tuple[int, ...]], tell: Tell
) -> Iterator[tuple[str, Array]]:
    name, separator, rest = argument.partition("=")
    if separator and not rest:
        raise invalid("inputs", f"{argument!r} does not name a file; pass NAME=FILE")
    if separator and (name in ports.names or not Path(argument).exists()):
        path = Path(rest)
    elif Path(argument).suffix == ".npz":
        for name, array in _load_npz(Path(argument)).items():
            port = _check_name(name, ports)
            _check_no_shape(Path(argument), port, shapes.get(name))
            yield name, _typed(array, port)
        return
    elif len(ports) == 1:
        name, path = ports[0].name, Path(argument)
    else:
        known = ", ".join(ports.names)
        raise invalid("inputs", f"{argument!r} needs the input's name: NAME=FILE, NAME of {known}")
    yield name, _read(path, _check_name(name, ports), shapes.get(name), tell)


def _check_name(name: str, ports: Ports) -> Port:
    if name not in ports.names:
        hint = did_you_mean(name, ports.names)
        raise invalid(f"inputs[{name!r}]", f"the network has no input {name!r}{hint}")
    return ports[name]


def _read(path: Path, port: Port, shape: tuple[int, ...] | None, tell: Tell) -> Array:
    suffix = path.suffix.lower()
    if suffix in {".npy", ".npz", *IMAGE_SUFFIXES}:
        _check_no_shape(path, port, shape)
    if suffix == ".npy":
        return _typed(_load(path), port)
    if suffix == ".npz":
        arrays = _load_npz(path)
        if port.name in arrays:
            return _typed(arrays[port.name], port)
        if len(arrays) == 1:
            return _typed(next(iter(arrays.values())), port)
        raise _bad(path, port, f"holds {', '.join(arrays)}, but not {port.name}")
    if suffix in IMAGE_SUFFIXES:
        from headrace.client.cli.images import read_image  # needs Pillow, an extra

        return read_image(path, port, tell)
    if suffix not in RAW_SUFFIXES and shape is None:
        message = (
            f"{suffix} files are not read; pass .npy, .npz, an image, or raw elements as .bin "
            "or with --shape"
        )
        raise _bad(path, port, message)
    return _read_raw(path, port, shape)


def _check_no_shape(path: Path, port: Port, shape: tuple[int, ...] | None) -> None:
    if shape is not None:
        raise _bad(path, port, "has a shape of its own; leave out --shape, which is for raw files")


def _load(path: Path) -> Any:
    suffix = path.suffix.lower()
    try:
        with path.open("rb") as file:
            if not file.read(6).startswith(_MAGIC[suffix]):
                raise ValueError(f"it is not a {suffix} file")
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else _why(error)
        raise invalid("inputs", f"cannot read {path}: {reason}") from None


def _load_npz(path: Path) -> dict[str, Array]:
    archive = _load(path)
    with archive:
        try:
            return {name: archive[name] for name in archive.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise invalid("inputs", f"cannot read {path}: {_why(error)}") from None


def _why(error: Exception) -> Exception | str:
    return _OBJECTS if "allow_pickle" in str(error) else error


def _typed(array: Array, port: Port) -> Array:
    """The array with its type. NumPy reads bfloat16 and similar types from .npy files as bytes."""
    if array.dtype.kind == "V" and array.dtype.names is None and port.dtype != "unknown":
        wanted = dtypes.numpy_type(dtypes.parse_name(port.dtype))
        if wanted.itemsize == array.dtype.itemsize:
            return array.view(wanted)
    return array


def _read_raw(path: Path, port: Port, shape: tuple[int, ...] | None) -> Array:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _bad(path, port, f"cannot be read: {error.strerror or error}") from None
    if port.dtype in ("string", "unknown"):
        raise _bad(path, port, f"is raw, which cannot hold {port.dtype} elements; pass a .npy file")
    dtype = dtypes.numpy_type(dtypes.parse_name(port.dtype))
    sizes = (
        shape if shape is not None else _shape_from_port(len(data) // dtype.itemsize, port, path)
    )
    expected = math.prod(sizes) * dtype.itemsize
    if len(data) != expected:
        raise _bad(
            path, port, f"has {len(data)} bytes, but {sizes} of {port.dtype} takes {expected}"
        )
    return np.frombuffer(data, dtype).reshape(sizes)


def _shape_from_port(elements: int, port: Port, path: Path) -> tuple[int, ...]:
    """The port's shape. Its open size follows from the number of elements and is 1 at least.
    If two sizes are open, the first one is the batch, which becomes 1."""
    shape = port.shape
    if shape and sum(not isinstance(size, int) for size in shape) == 2:
        shape = shape if isinstance(shape[0], int) else (1, *shape[1:])
    if shape is None or sum(not isinstance(size, int) for size in shape) > 1:
        raise _bad(path, port, f"is raw and the network leaves its shape open; pass --shape "
                               f"{port.name}=1,2,3")  # fmt: skip
    fixed = math.prod(size for size in shape if isinstance(size, int))
    return tuple(
        size if isinstance(size, int) else max(elements // fixed, 1) if fixed else 0
        for size in shape
    )


def _bad(path: Path, port: Port, message: str) -> InvalidArgument:
    return invalid(f"inputs[{port.name!r}]", f"{path} for input {port.name}: {message}")
