"""Lists the contents of a model repository's folder, without reading a model.

    name/model.onnx             version 1 of a network without folders for versions
    name/2/model.onnx           version 2 of a network
    name/pipeline.toml          a pipeline, in the place of a model
    name/config.pbtxt           Triton's configuration: of the model, or of an ensemble
    name/network.toml           how to load it, and which versions serve

Every folder is a network. One that has no model is a network with a fault, so that its owner learns
why nothing is loaded. Names that begin with a dot are left alone: file systems and desktops put
files of their own there, and a folder is filled under such a name before it is renamed into place.

Links may lead from one place of the repository to another, but not out of it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from headrace.runtime.loading.entry import FIRST_VERSION, is_network_name, is_version
from headrace.runtime.pipelines.description import FILE as PIPELINE
from headrace.server.repository.description import FILE
from headrace.server.repository.model_config import FILE as CONFIG
from headrace.server.repository.model_config import MODEL

_log = logging.getLogger(__name__)

_SOURCES: Final = (MODEL, PIPELINE)
"""The files that a version is loaded from, of which it has one. A folder of the model's name may
hold the model beside its external data."""
MAX_NETWORKS: Final = 100_000
MAX_VERSIONS: Final = 1000
"""The most versions that one network may have."""
MAX_FILES: Final = 10_000
"""The most files that one version may have."""
_MAX_DEPTH: Final = 8
_MAX_NOTES: Final = 5
_VERSIONS: Final = "a version is a number from 1 without leading zeros"

_MAX_NAMES: Final = 1000
"""The most names that a description of a folder without a model is made from."""

_TWO_SOURCES: Final = f"both {MODEL} and {PIPELINE} are there; remove one"
LEADS_OUT: Final = "is a link that leads out of the model repository"


class _Stamp(NamedTuple):
    """Properties of a file that change when its contents or its permissions change. The time of
    the last change (ctime) cannot be put back, as the one of the last write can."""

    path: str
    size: int = 0
    modified: int = 0
    changed: int = 0
    inode: int = 0


Signature: TypeAlias = tuple[_Stamp, ...]


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a version, or the description and the files that it names.

    Attributes:
        folder: the folder that holds the files.
        source: the file that the version is loaded from, in the folder. ``config.pbtxt`` stands for
            what that file names.
        signature: stays the same as long as nobody changes the files.
        settled: whether the files were renamed into place whole, and not written since.
        fault: why the version cannot be loaded; empty if it can.
    """

    folder: Path
    signature: Signature
    settled: bool = field(default=False, compare=False)
    fault: str = ""
    source: str = MODEL


@dataclass(frozen=True, slots=True)
class NetworkFolder:
    """
    Attributes:
        fault: why no version can be loaded. Empty if versions can be loaded.
        bare: whether the fault is that there are no versions, so that loaded ones are not wanted.
        nameless: the folder may not be a network, and is not listed among the networks.
        notes: what is there and has no effect.
        name: the network's; empty if it is the folder's.
    """

    path: Path
    versions: Mapping[str, Files]
    description: Files
    fault: str = ""
    bare: bool = False
    nameless: bool = False
    notes: tuple[str, ...] = ()
    name: str = ""

    @property
    def network(self) -> str:
        return self.name or self.path.name


def look(root: Path) -> dict[str, NetworkFolder]:
    """All networks of a repository, by name. Folders that cannot be read are included.

    Raises:
        OSError: the repository itself cannot be read.
    """
    folders: dict[str, NetworkFolder] = {}
    with os.scandir(root) as entries:
        for entry in entries:
            if len(folders) >= MAX_NETWORKS:
                _log.error("the model repository has more than %d networks", MAX_NETWORKS)
                break
            network = look_at(root, entry.name)
            if network is not None:
                folders[_printable(entry.name)] = network
    return dict(sorted(folders.items()))


def look_at(root: Path, name: str) -> NetworkFolder | None:
    """One network of a repository, or None if there is no network under that name."""
    path, named = root / name, is_network_name(name)
    if name.startswith("."):
        return None
    try:
        if named:
            return _network(root, path)
        if not _is_one(path):
            return None
        fault = f"{name[:200]!r} is not a network name; rename it"
    except OSError as error:  # for example lost+found
        fault = f"cannot be read: {error.strerror}"
    return replace(_faulty(path, fault), nameless=not named)


def look_in(root: Path, path: Path) -> NetworkFolder:
    """The network whose versions lie in a folder of a repository. A version's model may have any
    name, if there is one alone."""
    try:
        found = _network(root, path, any_name=True)
    except OSError as error:
        return _faulty(path, f"cannot be read: {error.strerror}")
    return found or _faulty(path, f"{str(path)[:200]!r} is not a folder")


def _network(root: Path, path: Path, *, any_name: bool = False) -> NetworkFolder | None:
    if _leads_out(root, str(path)):
        return _faulty(path, f"{path.name!r} {LEADS_OUT}")
    if not os.path.isdir(path):  # noqa: PTH112 - faster: each look may check ten thousand
        return _no_folder(path)
    versions: dict[str, Files] = {}
    numbered: list[os.DirEntry[str]] = []
    beside: list[os.DirEntry[str]] = []
    notes: list[str] = []
    fault, source, config = "", "", None
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            if is_version(name) and _may_be_folder(entry):
                numbered.append(entry)
                continue
            beside.append(entry)
            if name in _SOURCES:
                fault = fault or (_TWO_SOURCES if source else "")
                source = name
            if name in (FILE, CONFIG) and _leads_out(root, entry.path):
                fault = f"{name} {LEADS_OUT}"
            if name == CONFIG:
                config = entry
            elif _may_be_folder(entry) and os.path.isfile(f"{entry.path}/{MODEL}"):  # noqa: PTH113
                notes.append(f"{_printable(name)}/{MODEL} is not served: {_VERSIONS}")
    for entry in numbered:
        version = (
            _version(root, path, entry, config, any_name=any_name)
            if len(versions) < MAX_VERSIONS
            else None
        )
        if version is not None:
            versions[entry.name] = version
    if source and FIRST_VERSION in versions:
        other = versions[FIRST_VERSION].source
        fault = f"both {source} and {FIRST_VERSION}/{other} are there; remove one"
    elif source:
        versions[FIRST_VERSION] = _checked(root, path, path, source, beside)
    elif not versions and config is not None:  # an ensemble may have folders that are empty
        empty = [entry.name for entry in numbered[:MAX_VERSIONS]] or [FIRST_VERSION]
        versions = dict.fromkeys(empty, _checked(root, path, path, CONFIG, beside))
    if not versions and not fault:
        return replace(_faulty(path, _without_model(path, beside)), bare=True)
    description = _files(path, path, _but(beside, MODEL))
    return NetworkFolder(path, versions, description, fault, notes=tuple(notes[:_MAX_NOTES]))


def _faulty(path: Path, fault: str) -> NetworkFolder:
    return NetworkFolder(path, {}, Files(path, ()), fault)


def _no_folder(path: Path) -> NetworkFolder | None:
    """What is wrong with a file that somebody may take for a network."""
    if path.suffix == ".onnx" and path.is_file():
        return _faulty(path, f"is a file; move it to {path.stem}/{MODEL}")
    return _faulty(path, "is a link that leads nowhere") if path.is_symlink() else None


def _version(
    root: Path,
    network: Path,
    entry: os.DirEntry[str],
    config: os.DirEntry[str] | None,
    *,
    any_name: bool,
) -> Files | None:
    """A version in a folder of its own, or None if there are no files in the folder.

    Args:
        config: Triton's configuration, which may name another file than the usual one. A version
            changes with it.
    """
    folder = Path(entry.path)
    try:
        if entry.is_symlink() and _leads_out(root, entry.path):
            return _broken(folder, f"version {entry.name} {LEADS_OUT}")
        sources = [each for each in _SOURCES if os.path.isfile(f"{entry.path}/{each}")]  # noqa: PTH113 - as above
        if len(sources) > 1:
            return _broken(folder, f"version {entry.name}: {_TWO_SOURCES}")
        if not sources and os.path.isfile(f"{entry.path}/{MODEL}/{MODEL}"):  # noqa: PTH113
            sources = [f"{MODEL}/{MODEL}"]
        there = [] if sources else _names(entry.path)
        if any_name and len(models := [each for each in there if each.endswith(".onnx")]) == 1:
            sources = models
        if config is not None and (sources or there):
            files = _checked(root, network, folder, sources[0] if sources else CONFIG)
            stamp = _stamp(f"../{CONFIG}", config.stat())
            return replace(files, signature=(*files.signature, stamp))
        if sources:
            return _checked(root, network, folder, sources[0])
    except OSError as error:
        return _broken(folder, f"version {entry.name} cannot be read: {error.strerror}")
    if not there:
        return None
    if MODEL not in there:
        return _broken(folder, f"version {entry.name} has no {MODEL}; found {_told(there)}")
    return _checked(root, network, folder, MODEL)


def _checked(
    root: Path,
    network: Path,
    folder: Path,
    source: str,
    beside: list[os.DirEntry[str]] | None = None,
) -> Files:
    """A version's files, as `_files`, if the file that it is loaded from can be read."""
    try:
        model = f"{network if source == CONFIG else folder}/{source}"
        if _leads_out(root, model) or ("/" in source and _leads_out(root, f"{folder}/{MODEL}")):
            return _broken(folder, f"{source} {LEADS_OUT}")
        if not stat.S_ISREG(os.stat(model).st_mode):  # noqa: PTH116 - as above
            return _broken(folder, f"{source} is not a regular file")
        files = _files(folder, network, None if beside is None else _but(beside, FILE))
        return replace(files, source=source)
    except OSError as error:
        return _broken(folder, f"{source} cannot be read: {error.strerror}")


def _broken(folder: Path, fault: str) -> Files:
    return Files(folder, (_Stamp(fault),), fault=fault)


def _without_model(path: Path, beside: list[os.DirEntry[str]]) -> str:
    """Says that a folder has no model, and what it has instead."""
    there = [each.name for each in beside]
    for each in beside:
        if len(there) < _MAX_NAMES and Path(each.path).is_dir():
            there += [f"{each.name}/{name}" for name in _names(each.path)]
    if not there:
        return f"the folder is empty; put the model at {path.name}/{MODEL}"
    lost = [name for name in there if name.endswith(f"/{MODEL}")]
    if lost:
        return f"has no version; found {_told(lost)}: {_VERSIONS}"
    return f"has no {MODEL}; found {_told(there)}"


def _told(names: list[str]) -> str:
    """A few of the names, models first, and what to do."""
    models = [name for name in names if name.endswith(".onnx")]
    shown = sorted(_printable(name)[:100] for name in models or names)
    text = ", ".join(shown[:3]) + (", …" if len(shown) > 3 else "")
    if models:
        return text if MODEL in models[0] else f"{text}: rename the model to {MODEL}"
    return f"{text}: the server loads ONNX models only"


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link, without a look at what the link leads to."""
    return entry.is_symlink() or entry.is_dir()


def _names(folder: str) -> list[str]:
    """Names in a folder, except hidden ones."""
    with os.scandir(folder) as entries:
        shown = (entry.name for entry in entries if not entry.name.startswith("."))
        return list(islice(shown, _MAX_NAMES))


def _printable(name: str) -> str:
    """The name of a file as text that can be sent and logged."""
    return os.fsencode(name).decode(errors="replace")


def _but(entries: list[os.DirEntry[str]], name: str) -> list[os.DirEntry[str]]:
    return [entry for entry in entries if entry.name != name]


def _is_one(path: Path) -> bool:
    """Whether a path without a network's name holds a model, or versions with models."""
    if not path.is_dir():
        return path.suffix == ".onnx" and path.is_file()
    versions = (each / MODEL for each in path.iterdir() if is_version(each.name))
    return (path / MODEL).is_file() or any(map(Path.is_file, versions))


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
        if entry.name.startswith("."):
            continue
        try:
            facts = entry.stat()
        except OSError:  # a broken link, or a file that was just removed
            continue
        if not stat.S_ISDIR(facts.st_mode):
            yield name, facts
        elif depth < _MAX_DEPTH:
            yield from _walk(entry.path, name + "/", depth + 1)


def stamp_of(text: str) -> _Stamp:
    """A stamp that stays the same as long as the text does."""
    return _Stamp(text)


def _stamp(name: str, facts: os.stat_result) -> _Stamp:
    return _Stamp(name, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
