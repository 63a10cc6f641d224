"""The files that hold a model's external data: in the model's folder, or sent along with it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Final

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.limits import Limits
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.system.mapped_files import MappedFiles

SPOOLED_BYTES: Final = 2**20
"""Weights with fewer bytes stay in memory."""


class ExternalFiles:
    """No files: the model has to hold all of its weights itself.

    Attributes:
        most_bytes: the most bytes of all tensors that lie in the files.
    """

    def __init__(self, most_bytes: int = 0) -> None:
        self.most_bytes = most_bytes

    def find(self, location: str, what: str) -> memoryview:
        """The bytes of the file in which the tensor `what` lies.

        Raises:
            InvalidModel: there is no such file, or the model may not use it.
        """
        raise _invalid(
            f"{what} lies in the external file {location!r}, which the server does not have: "
            "give the client the model's path, so that it sends the file along, save the model "
            "with its weights inline, or put it into the server's model repository"
        )

    def spool(self, mapped: MappedFiles) -> None:
        """Moves large files that are in memory to mapped files."""


class FilesInFolder(ExternalFiles):
    """Files in a folder and below. They are mapped, not read. You may replace a file that a network
    uses by renaming another file over it, but you must not shorten it in place.

    Args:
        folder: the folder that the files must be in.
        base: the model's own folder. Locations are relative to it.

    Attributes:
        mapped: the files that are mapped.
    """

    def __init__(self, folder: Path, base: Path, limits: Limits) -> None:
        super().__init__(limits.tensor_bytes)
        self._folder = folder.resolve()
        self._base = base
        self._limits = limits
        self._files: dict[Path, memoryview] = {}
        self.mapped = MappedFiles()
        self._places: dict[str, Path] = {}  # what the locations lead to

    def find(self, location: str, what: str) -> memoryview:
        path = self._path(location, what)
        if path not in self._files:
            self._files[path] = self._map(path, location, what)
        self._places[location] = path
        return self._files[path]

    def open(self, location: str) -> BufferedReader:
        """The file at a location. Raises as `find`."""
        return self._open(self._path(location, "a weight"), location, "a weight")

    @property
    def locations(self) -> list[str]:
        """Those of the files in which tensors lie."""
        return [*self._places]

    def digests(self) -> dict[str, str]:
        """The SHA-256, in hexadecimal, of each file in which tensors lie, by location."""
        return {
            location: hashlib.sha256(self._files[path]).hexdigest()
            for location, path in self._places.items()
        }

    # -- inside --

    def _path(self, location: str, what: str) -> Path:
        if not is_inside(location):
            raise _outside(location, what)
        # Unlike Path.resolve, this accepts a loop of links. Opening the loop fails below.
        path = Path(os.path.realpath(self._base / location[: self._limits.name_length]))
        if not path.is_relative_to(self._folder):
            raise _invalid(f"{what} lies in {location!r}, which leads out of the model's folder")
        return path

    def _map(self, path: Path, location: str, what: str) -> memoryview:
        with self._open(path, location, what) as file, _readable(location, what):
            return self.mapped.map(file.fileno())

    @staticmethod
    def _open(path: Path, location: str, what: str) -> BufferedReader:
        with _readable(location, what):
            if not path.is_file():  # opening a pipe would wait for its other end
                raise OSError("not a file")
            return path.open("rb")


class OpenFiles(ExternalFiles):
    """Files that are open. They are mapped, not read.

    Args:
        files: their descriptors, by location.

    Attributes:
        mapped: the files that are mapped.

    Raises:
        OSError, ValueError: a file cannot be mapped.
    """

    def __init__(self, files: Mapping[str, int], limits: Limits) -> None:
        super().__init__(limits.tensor_bytes)
        self.mapped = MappedFiles()
        self._files = {location: self.mapped.map(each) for location, each in files.items()}

    def find(self, location: str, what: str) -> memoryview:
        if location not in self._files:
            raise _outside(location, what)
        return self._files[location]


class SentFiles(ExternalFiles):
    """Files that a client sent with the model. No name of theirs reaches the file system.

    Many tensors may lie in one place. So their bytes count one by one, as if each had been sent
    inside the model.

    Args:
        files: the bytes, by the path relative to the model.

    Raises:
        InvalidModel: a path leads out of the model's folder.
    """

    def __init__(self, files: Mapping[str, Buffer], limits: Limits) -> None:
        super().__init__(limits.model_bytes)
        for path in files:
            if not is_inside(path):
                raise _outside(path, "a file")
        self._files = {str(PurePosixPath(path)): memoryview(data) for path, data in files.items()}
        self._unused = set(self._files)

    def find(self, location: str, what: str) -> memoryview:
        if not is_inside(location):
            raise _outside(location, what)
        path = str(PurePosixPath(location))
        if path not in self._files:
            raise _invalid(
                f"{what} lies in the external file {location!r}, which was not sent; send it "
                "beside the model"
            )
        self._unused.discard(path)
        return self._files[path]

    def spool(self, mapped: MappedFiles) -> None:
        large = [path for path, data in self._files.items() if len(data) >= SPOOLED_BYTES]
        moved = mapped.spool([self._files[path] for path in large]) if large else []
        self._files.update(zip(large, moved, strict=True))

    def check_used(self) -> None:
        """
        Raises:
            InvalidModel: no tensor lies in one of the files.
        """
        if self._unused:
            name = min(self._unused)[:200]
            raise _invalid(f"no weights of the model lie in the file {name!r}; leave it out")


@contextmanager
def _readable(location: str, what: str) -> Iterator[None]:
    """
    Raises:
        InvalidModel: the file in which the tensor `what` lies cannot be read.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        # Leave out the system error's file name, so that clients do not see the folders.
        why = (isinstance(error, OSError) and error.strerror) or error
        raise _invalid(f"{what} lies in {location!r}, which cannot be read: {why}") from error


def is_inside(path: str) -> bool:
    """Whether a path is relative and has no step that leads up."""
    parts = PurePosixPath(path)
    return bool(parts.parts) and not (parts.is_absolute() or ".." in parts.parts or "\0" in path)


def _outside(location: str, what: str) -> InvalidModel:
    return _invalid(
        f"{what} lies in {location[:200]!r}; external data must be named relative to the "
        "model's folder, without '..'"
    )


def _invalid(message: str) -> InvalidModel:
    return InvalidModel(message, field="model")
