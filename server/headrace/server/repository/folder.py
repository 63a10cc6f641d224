"""Lists the contents of a model repository's folder, without reading a model.

    name/model.onnx             version 1 of a network without folders for versions
    name/2/model.onnx           version 2 of a network
    name/network.toml           how to load it, and which versions serve

Links may lead from one place of the repository to another, but not out of it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from headrace.runtime.loading.entry import FIRST_VERSION, is_network_name, is_version
from headrace.server.repository.description import FILE

_log = logging.getLogger(__name__)

MODEL: Final = "model.onnx"
MAX_NETWORKS: Final = 100_000
MAX_VERSIONS: Final = 1000
"""The most versions that one network may have."""
MAX_FILES: Final = 10_000
"""The most files that one version may have."""
_MAX_DEPTH: Final = 8

LEADS_OUT: Final = "is a link that leads out of the model repository"


class _Stamp(NamedTuple):
    """Properties of a file that change when its contents change."""

    path: str
    size: int
    modified: int
    inode: int


Signature: TypeAlias = tuple[_Stamp, ...]


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a version, or the description and the files that it names.

    Attributes:
        folder: the folder that holds the files.
        signature: stays the same as long as nobody changes the files.
        settled: whether the files were renamed into place whole, and not written since.
    """

    folder: Path
    signature: Signature
    settled: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class NetworkFolder:
    """
    Attributes:
        fault: why no version can be loaded. Empty if versions can be loaded.
        nameless: the folder may not be a network, and is not listed among the networks.
    """

    path: Path
    versions: Mapping[str, Files]
    description: Files
    fault: str = ""
    nameless: bool = False


def look(root: Path) -> dict[str, NetworkFolder]:
    """All networks of a repository, by name. Folders that cannot be read are included.

    Raises:
        OSError: the repository itself cannot be read.
    """
    found: dict[str, NetworkFolder] = {}
    with os.scandir(root) as entries:
        for entry in entries:
            if len(found) >= MAX_NETWORKS:
                _log.error("the model repository has more than %d networks", MAX_NETWORKS)
                break
            network = look_at(root, entry.name)
            if network is not None:
                found[entry.name] = network
    return dict(sorted(found.items()))


def look_at(root: Path, name: str) -> NetworkFolder | None:
    """One network of a repository, or None if there is no network under that name."""
    path = root / name
    nothing = Files(path, ())
    try:
        if not is_network_name(name):
            fault = f"{name[:200]!r} is not a network name; rename the folder"
            return NetworkFolder(path, {}, nothing, fault, nameless=True) if _is_one(path) else None
        return _network(root, path)
    except (OSError, RuntimeError) as error:  # for example lost+found, or a link to itself
        reason = error.strerror if isinstance(error, OSError) else "it is a link to itself"
        return NetworkFolder(path, {}, nothing, f"cannot be read: {reason}", nameless=True)


def _network(root: Path, path: Path) -> NetworkFolder | None:
    if not os.path.isdir(path):  # noqa: PTH112 - faster: each look may check ten thousand
        return None
    versions: dict[str, Files] = {}
    beside: list[os.DirEntry[str]] = []
    if _leads_out(root, str(path)):
        fault = f"{path.name!r} {LEADS_OUT}"
        return NetworkFolder(path, {}, Files(path, ()), fault) if _is_one(path) else None
    fault, has_model = "", False
    with os.scandir(path) as entries:
        for entry in entries:
            if is_version(entry.name) and entry.is_dir():
                if len(versions) < MAX_VERSIONS and _has_model(entry.path):
                    if _leads_out(root, entry.path) or _leads_out(root, f"{entry.path}/{MODEL}"):
                        fault = f"version {entry.name} {LEADS_OUT}"
                    else:
                        versions[entry.name] = _files(Path(entry.path), path)
                continue
            beside.append(entry)
            if entry.name in (MODEL, FILE) and entry.is_symlink() and _leads_out(root, entry.path):
                fault = f"{entry.name} {LEADS_OUT}"
            elif entry.name == MODEL:
                has_model = entry.is_file()
    if has_model and FIRST_VERSION in versions:
        fault = f"both {MODEL} and {FIRST_VERSION}/{MODEL} are there; remove one"
    elif has_model:
        versions[FIRST_VERSION] = _files(path, path, _but(beside, FILE))
    if not versions and not fault:
        return None
    return NetworkFolder(path, versions, _files(path, path, _but(beside, MODEL)), fault)


def _but(entries: list[os.DirEntry[str]], name: str) -> list[os.DirEntry[str]]:
    return [entry for entry in entries if entry.name != name]


def _is_one(path: Path) -> bool:
    """Whether a folder holds a model, or versions with models."""
    return (path / MODEL).is_file() or (
        path.is_dir()
        and any(is_version(each.name) and (each / MODEL).is_file() for each in path.iterdir())
    )


def _has_model(folder: str) -> bool:
    return os.path.isfile(f"{folder}/{MODEL}")  # noqa: PTH113 - as above


def _leads_out(root: Path, path: str) -> bool:
    """Whether `path` is itself a link that leads out of the repository."""
    return os.path.islink(path) and not Path(os.path.realpath(path)).is_relative_to(root)  # noqa: PTH114


def _files(folder: Path, network: Path, beside: list[os.DirEntry[str]] | None = None) -> Files:
    """The files of a version in `folder`. If `beside` is given, only these files count.

    A write sets a file's modification time (mtime) and change time (ctime) together. A rename sets
    only the ctime of the file or folder that is renamed. So a file was moved into place whole in
    two cases: its own ctime is later than its mtime, or a folder around it was renamed (its ctime
    is later than its mtime) and the folder's ctime is not older than the file's.
    """
    walked = _walk(folder, "", 0) if beside is None else _walk_entries(beside, "", 0)
    stamps, changed = [], []
    for name, facts in walked:
        stamps.append(_stamp(name, facts))
        if len(stamps) > MAX_FILES:
            break
        if not stat.S_ISDIR(facts.st_mode) and facts.st_ctime_ns <= facts.st_mtime_ns:
            changed.append(facts.st_ctime_ns)
    renamed = max(
        (
            facts.st_ctime_ns
            for facts in map(os.stat, {folder, network})
            if facts.st_ctime_ns > facts.st_mtime_ns
        ),
        default=-1,
    )
    return Files(folder, tuple(sorted(stamps)), settled=max(changed, default=-2) <= renamed)


def _walk(folder: str | Path, prefix: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        yield from _walk_entries(entries, prefix, depth)


def _walk_entries(
    entries: Iterator[os.DirEntry[str]] | list[os.DirEntry[str]], prefix: str, depth: int
) -> Iterator[tuple[str, os.stat_result]]:
    for entry in entries:
        name = prefix + entry.name
        try:
            facts = entry.stat()
        except OSError:  # a broken link, or a file that was just removed
            continue
        if not stat.S_ISDIR(facts.st_mode):
            yield name, facts
        elif depth < _MAX_DEPTH:
            yield from _walk(entry.path, name + "/", depth + 1)


def _stamp(name: str, facts: os.stat_result) -> _Stamp:
    return _Stamp(name, facts.st_size, facts.st_mtime_ns, facts.st_ino)
