"""What is known of models that were read before, so that they need not be read again.

    ROOT/models/DIGEST.compiled     digest, ports, operators and sizes of a model

A note is named after the bytes of the model's files, and after all that reads them. A model with
external data has another one, named after the model's own file, that says which files are beside
it. The checks of a model that has a note are left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cache, partial
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.file_notes import FileNotes
from headrace.runtime.cache.notes import Notes
from headrace.runtime.intake.external import FilesInFolder
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.model_files import OWN, ModelFiles
from headrace.runtime.intake.read import open_file
from headrace.runtime.network.facts import FACTS, facts_from_json, facts_to_json
from headrace.runtime.network.network import Network
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.system.file_identity import FileIdentity

_READERS: Final = ("headrace", "onnx", "onnx-ir")
_MOST_FILES: Final = 12
"""A model with more files beside it is read at each start. Each of them would stay open."""


class KnownModels:
    """Reads models. Thread-safe.

    A file whose bytes were read before is not read again while it is the same file.

    Args:
        cache: the server's cache; None if it has none. Then each model is read at once.
    """

    def __init__(self, cache: NetworkCache | None, limits: Limits) -> None:
        self._limits = limits
        self._models = Notes(cache, "models")
        self._notes = None if cache is None else FileNotes(cache)  # digests of files' bytes

    def from_bytes(self, data: Buffer) -> Network:
        """As `Network.from_bytes`. The model is read later, if it is known."""
        digests = {OWN: hashlib.sha256(data).hexdigest()}
        known = self._known(digests)
        if known is not None and not known.beside:  # else its weights are not in these bytes
            with suppress(OSError):  # the system may have no more descriptors
                files = ModelFiles.written([data], digests, self._limits)
                return Network.from_source(files, known.facts)
        network = Network.from_bytes(data, self._limits, spooled=True)
        if self._notes is not None:
            self._note(network, digests[OWN], {})
        return network

    def from_file(self, path: Path, folder: Path, *, spooled: bool, root: Path | None) -> Network:
        """As `Network.from_file`. The model is read later, if it is known and stays loaded."""
        limits = self._limits
        external = FilesInFolder(folder, path.parent, limits)
        with open_file(path, folder, limits, root) as file:
            known = self._of_file(file, external) if spooled else None
            if known is not None:
                return known
            place, identity = Path(file.name), FileIdentity.of(file.fileno())
            data = file.read()
        network = Network.from_data(data, external, limits, spooled=spooled)
        noted = spooled and len(external.locations) <= _MOST_FILES
        if noted and self._notes is not None:
            own = hashlib.sha256(data).hexdigest()
            self._saw(place, identity, own)
            self._note(network, own, external.digests())
        return network

    def note(self, network: Network) -> None:
        """Notes what is known of a network, for whoever reads what the network writes."""
        if self._notes is not None:
            self._note(network, network.digest, {})

    # -- inside --

    def _of_file(self, file: BufferedReader, external: FilesInFolder) -> Network | None:
        """The network of a file, which is read later; None if it is not known."""
        if self._notes is None:
            return None
        files = {OWN: file}
        digests = {OWN: self._digest(file)}
        known = self._known(digests)
        with ExitStack() as opened:
            if known is not None and known.beside:
                for location in known.beside:
                    files[location] = opened.enter_context(external.open(location))
                    digests[location] = self._digest(files[location])
                known = self._known(digests)
            if known is None:
                return None
            with ExitStack() as failed:  # the system may have no more descriptors
                kept = {}
                for location, each in files.items():
                    kept[location] = os.dup(each.fileno())
                    failed.callback(os.close, kept[location])
                failed.pop_all()
        return Network.from_source(ModelFiles(kept, digests, self._limits), known.facts)

    def _digest(self, file: BufferedReader) -> str:
        assert self._notes is not None
        path, identity = Path(file.name), FileIdentity.of(file.fileno())
        digest = self._notes.get(path, identity)
        if digest is None:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            self._saw(path, identity, digest)
        return digest

    def _saw(self, path: Path, identity: FileIdentity, digest: str) -> None:
        if identity.is_settled:
            assert self._notes is not None
            self._notes.set(path, identity, digest)

    def _known(self, digests: Mapping[str, str]) -> _Known | None:
        """What is known of a model; None if nothing is.

        Args:
            digests: of its own file alone, to learn which files are beside it, or of all its files.
        """
        return self._models.read(partial(self._facts, digests), _Known.of)

    def _note(self, network: Network, own: str, beside: Mapping[str, str]) -> None:
        """Notes what is known of a network now.

        Args:
            own: the digest of its model's file.
            beside: the digests of the files beside it, by location.
        """
        if len(beside) > _MOST_FILES:
            return
        told = {"beside": [*beside], "facts": facts_to_json(network, FACTS)}
        self._models.write(partial(self._facts, {OWN: own}), told)
        if beside:
            self._models.write(partial(self._facts, {OWN: own, **beside}), told)

    def _facts(self, digests: Mapping[str, str]) -> Mapping[str, object]:
        return {"model": digests, "limits": dataclasses.asdict(self._limits), **_readers()}


class _Known(NamedTuple):
    """
    Attributes:
        beside: the locations of the files beside the model.
        facts: as `Network.from_source` takes them.
    """

    beside: tuple[str, ...]
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> Self:
        return cls(tuple(map(str, note["beside"])), facts_from_json(note["facts"], FACTS))


@cache
def _readers() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _READERS}
