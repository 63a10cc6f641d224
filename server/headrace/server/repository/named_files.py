"""Reads the files that the description of a network names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.runtime.errors import FailedPrecondition, InvalidArgument
from headrace.runtime.system.atomic_file import read_file
from headrace.runtime.transform.options import read_labels

_MAX_LABEL_BYTES: Final = 1 << 20


def file_inside(folder: Path, name: str, key: str, file: str) -> Path:
    """The path of a file that the description names.

    Args:
        key, file: where it is named, for the error.

    Raises:
        InvalidArgument: the path is not a file inside the network's folder.
    """
    where = f"{file}: {key}"
    try:
        path = (folder / name).resolve()
        inside = path.is_relative_to(folder.resolve()) and path.is_file()
    except (OSError, ValueError, RuntimeError):
        inside = False
    if not inside:
        raise InvalidArgument(f"{name[:200]!r} is not a file in the network's folder", field=where)
    return path


def read_bounded(path: Path, name: str, limit: int) -> bytes:
    """
    Raises:
        FailedPrecondition: the file cannot be read, or has more than `limit` bytes. The error's
            field is `name`.
    """
    try:
        return read_file(path, limit)
    except OSError as error:
        raise FailedPrecondition(f"cannot be read: {error.strerror}", field=name) from error


def labels_inside(folder: Path, name: str, file: str) -> tuple[str, ...]:
    """The labels of a file in the network's folder, one a line.

    Args:
        file: the description that names it, for the error.

    Raises:
        InvalidArgument, FailedPrecondition: there is no such file, or it does not hold labels.
    """
    data = read_bounded(file_inside(folder, name, "label_filename", file), name, _MAX_LABEL_BYTES)
    try:
        return read_labels(data.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"is not UTF-8: {error}", field=name) from error
