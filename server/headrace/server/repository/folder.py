"""What lies in the folder of a model repository, without reading a model.

    name/model.onnx             a network without versions, which is its version 1
    name/2/model.onnx           version 2 of a network
    name/network.toml           how to load it, and which versions serve

Links may lead from one place of the repository to another, never out of it.
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
"""Of one network."""
MAX_FILES: Final = 10_000
"""Of one version."""
_MAX_DEPTH: Final = 8

LEADS_OUT: Final = "is a link that leads out of the model repository"


class _Stamp(NamedTuple):
    """What changes with a file's contents."""

    path: str
    size: int
    modified: int
    inode: int


Signature: TypeAlias = tuple[_Stamp, ...]


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a version, or those beside the versions: the description and what it names.

    Attributes:
        folder: that holds them.
        signature: the same as long as nobody changes them.
        settled: they came to their place whole, by renaming: nothing was written since.
    """

    folder: Path
    signature: Signature
    settled: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class NetworkFolder:
    """
    Attributes:
        fault: why none of its versions can be loaded; empty if they can.
        nameless: it may be no network at all, and has no place among them.
    """

    path: Path
    versions: Mapping[str, Files]
    description: Files
    fault: str = ""
    nameless: bool = False


def look(root: Path) -> dict[str, NetworkFolder]:
    """All networks of a repository, by name, and folders that cannot be looked at.

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
    """One network of a repository; None if there is nothing of the kind under that name."""
    path = root / name
    nothing = Files(path, ())
    try:
        if not is_network_name(name):
            fault = f"{name[:200]!r} is not a network name; rename the folder"
            return NetworkFolder(path, {}, nothing, fault, nameless=True) if _is_one(path) else None
        return _network(root, path)
    except (OSError, RuntimeError) as error:  # as the lost+found of a volume; a link to itself
        reason = error.strerror if isinstance(error, OSError) else "it is a link to itself"
        return NetworkFolder(path, {}, nothing, f"cannot be read: {reason}", nameless=True)


def _network(root: Path, path: Path) -> NetworkFolder | None:
    if not os.path.isdir(path):  # noqa: PTH112 - there may be ten thousand, at each look
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
    """The files of a version in `folder`; `beside` are those that count, if not all do.

    A write changes a file's times of modification and of change alike; a rename changes the second
    alone, of what is renamed. So a file was put whole where it is if its own time of change is the
    later one, or that of a folder around it that is not older than the file's.
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
        except OSError:  # a link that leads nowhere, or a file that went this moment
            continue
        if not stat.S_ISDIR(facts.st_mode):
            yield name, facts
        elif depth < _MAX_DEPTH:
            yield from _walk(entry.path, name + "/", depth + 1)


def _stamp(name: str, facts: os.stat_result) -> _Stamp:
    return _Stamp(name, facts.st_size, facts.st_mtime_ns, facts.st_ino)
