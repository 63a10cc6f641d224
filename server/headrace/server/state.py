"""The state directory, which restores clients' networks after any restart or crash.

    networks/NAME.json      how the network was loaded, and the digest of its model; for a network
                            from the model repository, its name there and the client's options
    networks/NAME@V.json    the same for version V, if V is not 1
                            NAME is the full name: NAME@OWNER if a tenant owns the network
    traffic/NAME.json       each version's share of the requests, if a client set the shares
    shadows/NAME.json       the network's shadow, if a client set one
    models/DIGEST.onnx      the model; networks share it, and it is removed with the last of them
    devices/NAME.json       the configuration that clients gave a device with SetConfig
    extensions/NAME/DIGEST.onnx
                            the functions of an extension of a device
    kept/DEVICE/            the device's own files, for example compiled kernels; the device also
                            works without them

Every file is written whole or not at all. A model is written before the network that names it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from headrace.runtime.errors import (
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.entry import FIRST_VERSION, is_version
from headrace.runtime.loading.shadows.shadow import Shadow, check_shadow
from headrace.runtime.loading.versions import check_shares
from headrace.runtime.network.network import Network
from headrace.runtime.system.atomic_file import read_file, remove_file, remove_leftovers, write_file
from headrace.runtime.transform.options import LoadRequest, Reference

_log = logging.getLogger(__name__)

T = TypeVar("T")
Kept: TypeAlias = tuple[LoadRequest, Path] | Reference
"""How a network was loaded, with its model's file or its place in the model repository."""

_UNREADABLE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    InvalidArgument,
    OSError,
)
"""The errors that reading a damaged file raises."""


class StateDirectory:
    """Implements the core's NetworkStore. Thread-safe: `_lock` orders the changes. It also guards
    the set of models that are kept although no network names them yet.

    The methods that the core calls raise ResourceExhausted if the disk is full, and Unavailable if
    the folder cannot be written for another reason. In both cases nothing has changed.
    """

    shared = False

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._kept: Counter[str] = Counter()
        self._networks = folder / "networks"
        self._models = folder / "models"
        self._traffic = folder / "traffic"
        self._shadows = folder / "shadows"
        self._devices = folder / "devices"
        self._extensions = folder / "extensions"
        self.kept = folder / "kept"
        for each in (
            self._networks,
            self._models,
            self._traffic,
            self._shadows,
            self._devices,
            self._extensions,
            self.kept,
        ):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_leftovers(each)

    # -- methods that the core calls --

    @contextmanager
    def keep_model(self, network: Network) -> Iterator[str]:
        digest = network.digest
        with self._lock:
            self._kept[digest] += 1
        try:
            model = self._models / f"{digest}.onnx"
            if not model.is_file():
                with _writing():
                    write_file(model, network.chunks())
            yield digest
        finally:
            with self._lock:
                self._kept[digest] -= 1
                self._kept += Counter()  # drops counts that are not positive
                self._collect()

    def save_network(self, request: LoadRequest, model: str, *, alone: bool) -> None:
        name, reference = request.name, request.reference
        if reference is not None:
            facts = {"reference": reference.to_json()}
        else:
            facts = {"request": request.to_json(), "model": model}
        with self._lock, _writing():
            path = self._file(name, FIRST_VERSION if reference is not None else request.version)
            write_file(path, json.dumps(facts).encode())
            for other in self._files(name):
                # A reference stands for all versions of the network in the repository.
                if other != path and (alone or reference is not None or _is_reference(other)):
                    remove_file(other)
            if alone:
                remove_file(self._traffic / f"{name}.json")
            self._collect()

    def forget_network(self, name: str, versions: Collection[str] | None = None) -> None:
        with self._lock, _writing():
            if versions is None:
                about = (folder / f"{name}.json" for folder in (self._traffic, self._shadows))
                leaving = [*self._files(name), *about]
            else:
                files = [self._file(name, version) for version in versions]
                leaving = [path for path in files if not _is_reference(path)]
            for path in leaving:
                remove_file(path)
            self._collect()

    def save_shares(self, name: str, shares: Mapping[str, int]) -> None:
        path = self._traffic / f"{name}.json"
        with self._lock, _writing():
            if shares:
                write_file(path, json.dumps(dict(shares)).encode())
            else:
                remove_file(path)

    def save_shadow(self, name: str, shadow: Shadow) -> None:
        with self._lock, _writing():
            write_file(self._shadows / f"{name}.json", json.dumps(shadow._asdict()).encode())

    def save_changes(self, name: str, version: str, changes: Mapping[str, str]) -> None:
        path = self._file(name, version)
        with self._lock, _writing():
            try:
                facts = json.loads(read_file(path))
                request = json.loads(facts["request"])
                request["config"] |= changes
            except _UNREADABLE:
                return  # the network comes from the repository, or its file is broken
            write_file(path, json.dumps({**facts, "request": json.dumps(request)}).encode())

    def save_config(self, device: str, config: Mapping[str, str]) -> None:
        with self._lock, _writing():
            write_file(self._devices / f"{device}.json", json.dumps(dict(config)).encode())

    def save_extension(self, device: str, functions: bytes) -> None:
        folder = self._extensions / device
        with self._lock, _writing():
            folder.mkdir(mode=0o700, exist_ok=True)
            name = hashlib.sha256(functions).hexdigest()
            write_file(folder / f"{name}.onnx", functions)

    # -- methods that a start calls --

    def networks(self) -> dict[str, list[str]]:
        """The networks that were loaded, each with its versions. A network from the repository
        lists only the first."""
        found: dict[str, list[str]] = {}
        for name, version in sorted(set(map(_place, self._networks.glob("*.json")))):
            found.setdefault(name, []).append(version)
        return found

    def network(self, name: str, version: str = FIRST_VERSION) -> Kept:
        """Returns what is needed to load the network of that name again.

        Raises:
            FailedPrecondition: the network's file cannot be read. The log says why.
        """
        path = self._file(name, version)
        try:
            facts = json.loads(read_file(path))
            if "reference" in facts:
                return Reference.from_json(facts["reference"])
            model = self._models / f"{Path(facts['model']).name}.onnx"
            request = LoadRequest.from_json(facts["request"])
            return replace(request, name=name, version=version), model
        except _UNREADABLE as error:
            _log.exception("cannot read %s", path.name)
            raise FailedPrecondition(
                "its files in the state directory cannot be read; load it again, or unload it"
            ) from error

    def shares(self) -> dict[str, dict[str, int]]:
        """The share of the requests that each version gets, by network name."""
        return dict(_each(self._traffic, check_shares))

    def shadows(self) -> dict[str, Shadow]:
        """The shadows that clients set, by network name."""
        return dict(_each(self._shadows, lambda facts: check_shadow(Shadow(**facts))))

    def configs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """The configuration that was set on each device."""
        return _each(self._devices, dict[str, str])

    def extensions(self) -> Iterator[tuple[str, bytes]]:
        """The device and the functions of each extension, oldest first."""
        files = self._extensions.glob("*/*.onnx")
        for path in sorted(files, key=lambda path: path.lstat().st_mtime_ns):
            try:
                yield path.parent.name, read_file(path)
            except OSError:
                _log.exception("cannot read %s; the extension is left out", path.name)

    def _file(self, name: str, version: str) -> Path:
        suffix = "" if version == FIRST_VERSION else f"@{version}"
        return self._networks / f"{name}{suffix}.json"

    def _files(self, name: str) -> list[Path]:
        """The files of all versions of a network, without folders in their place, which cannot be
        removed."""
        first = self._file(name, FIRST_VERSION)
        others = sorted(self._networks.glob(f"{name}@*.json"))
        return [
            path
            for path in (first, *others)
            if os.path.lexists(path) and not path.is_dir() and _place(path)[0] == name
        ]

    def _collect(self) -> None:
        used = set(self._kept)
        for path in self._networks.glob("*.json"):
            try:
                facts = json.loads(read_file(path))
                if "reference" not in facts:
                    used.add(str(facts["model"]))
            except _UNREADABLE:
                return  # an unreadable file may need any model: keep them all
        for model in self._models.glob("*.onnx"):
            if model.stem not in used:
                remove_file(model)


def _each(folder: Path, made: Callable[[Any], T]) -> Iterator[tuple[str, T]]:
    """What is made of each file of a folder, by the file's name."""
    for path in sorted(folder.glob("*.json")):
        try:
            yield path.stem, made(json.loads(read_file(path)))
        except _UNREADABLE:
            _log.exception("cannot read %s of %s; it is left out", path.name, folder.name)


def _place(path: Path) -> tuple[str, str]:
    """The full name and the version of a network, from the name of its file."""
    name, _, version = path.stem.rpartition("@")
    return (name, version) if name and is_version(version) else (path.stem, FIRST_VERSION)


def _is_reference(path: Path) -> bool:
    try:
        return "reference" in json.loads(read_file(path))
    except _UNREADABLE:
        return False


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"the server cannot write to its state directory: {error.strerror or error}"
        _log.error("%s%s", message, f": {error.filename}" if error.filename else "")
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (ResourceExhausted if full else Unavailable)(message) from error
