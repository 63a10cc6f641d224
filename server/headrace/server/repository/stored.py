"""The networks of a store, in folders that are copied. Nothing here asks the store.

A network's folder is one, and each folder of a version in it is one of its own: so a version is not
copied unless somebody reads it, and not again because another one comes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.runtime.loading.entry import is_version
from headrace.server.repository.folder import MAX_FILES
from headrace.server.repository.model_config import MODEL
from headrace.server.repository.remote import Object

_NO_SIZE: Final = "the server does not give it, or not its size"
_EARLY_BYTES: Final = 8 << 20
"""No description has more."""


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """A folder that is copied.

    Attributes:
        place: where it lies in the store, for people.
        files: its objects, by their path in it.
        links: the digests of the folders that its copy leads to, by their path in it. None for the
            folder of a version.
        early: the files that are copied before anybody reads the folder: what describes a network.
        digest: changes with any of these, and names the copy. The part before the ``-`` changes
            with the files alone.
    """

    place: str
    files: Mapping[str, Object]
    links: Mapping[str, str] = field(default_factory=dict)
    early: frozenset[str] = frozenset()
    is_version: bool = False
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = _digest(sorted((each.path, each.size, each.tag) for each in self.files.values()))
        if not self.is_version:
            digest += f"-{_digest(sorted(self.links.items()))}"
        object.__setattr__(self, "digest", digest)


@dataclass(frozen=True, slots=True)
class StoredNetwork:
    """
    Attributes:
        folders: those of versions, and then the network's own, whose copy leads to them.
        file: the name of the only file, if the network is no folder but a file beside networks.
        fault: why it cannot be copied; empty if it can.
    """

    folders: tuple[StoredFolder, ...]
    file: str = ""
    fault: str = ""

    @property
    def digest(self) -> str:
        """Changes with any object of the network."""
        return self.folders[-1].digest

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(each.size for folder in self.folders for each in folder.files.values())


def is_early(path: str, size: int) -> bool:
    """Whether a file in the folder of a network may be its description, or one that this names."""
    return size <= _EARLY_BYTES and not path.endswith(".onnx")


def is_of_version(digest: str) -> bool:
    """Whether a digest is that of a version's folder."""
    return "-" not in digest


def files_digest(digest: str) -> str:
    """What of a folder's digest changes with its files alone."""
    return digest.partition("-")[0]


def stored_networks(
    objects: Iterable[Object], wanted: Collection[str] = ()
) -> dict[str, StoredNetwork]:
    """The networks of a listing, by name, in the order of the names.

    Args:
        wanted: the names of files beside the networks' folders that are copied, too.
    """
    by_path = {each.path: each for each in objects}
    # A store may have an object and a folder of one name. A disk cannot.
    folders = {path[:at] for path in by_path for at, each in enumerate(path) if each == "/"}
    names: dict[str, dict[str, Object]] = {}
    for path in sorted(path for path in by_path if path not in folders):
        name, _, inside = path.partition("/")
        if inside or name in wanted or name.endswith(".onnx"):
            names.setdefault(name, {})[inside] = by_path[path]
    return {name: _network(name, files, wanted) for name, files in names.items()}


def _network(name: str, files: Mapping[str, Object], wanted: Collection[str]) -> StoredNetwork:
    if "" in files:
        alone = StoredFolder(name, {name: files[""]}, early=frozenset({name}))
        stem = name.removesuffix(".onnx")
        fault = "" if name in wanted else f"is a file; move it to {stem}/{MODEL}"
        return StoredNetwork((alone,), file=name, fault=fault or _fault_of((alone,)))
    parts: dict[str, dict[str, Object]] = {"": {}}
    for path, each in files.items():
        steps = path.split("/")
        at = next((at for at, step in enumerate(steps[:-1], 1) if is_version(step)), 0)
        folder = "/".join(steps[:at])
        parts.setdefault(folder, {})["/".join(steps[at:])] = each
    own_files = parts.pop("")
    versions = {
        path: StoredFolder(f"{name}/{path}", inside, is_version=True)
        for path, inside in parts.items()
    }
    own = StoredFolder(
        name,
        own_files,
        {path: each.digest for path, each in versions.items()},
        frozenset(path for path, each in own_files.items() if is_early(path, each.size)),
    )
    folders = (*versions.values(), own)
    return StoredNetwork(folders, fault=_fault_of(folders))


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _fault_of(folders: Iterable[StoredFolder]) -> str:
    for folder in folders:
        if len(folder.files) > MAX_FILES:
            return f"a folder of it has more than {MAX_FILES:,} files"
        for path, each in folder.files.items():
            if each.size < 0:
                return f"{path}: {_NO_SIZE}"
    return ""
