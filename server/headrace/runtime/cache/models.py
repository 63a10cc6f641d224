"""What is known of models that were read before, so that they need not be read again.

    ROOT/models/DIGEST.compiled     digest, ports, operators and sizes of a model, as JSON

An entry is named after the bytes of the model's file, and after all that reads them. It is signed
as the cache's other entries are, because the checks of a model that has one are left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import os
import weakref
from collections.abc import Mapping
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.entry import CacheKey, EntryRefused
from headrace.runtime.cache.file_notes import FileNotes
from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.intake.external import SPOOLED_BYTES
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.read import open_file
from headrace.runtime.network.facts import facts_from_json, facts_to_json
from headrace.runtime.network.network import Network
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.system.file_identity import FileIdentity
from headrace.runtime.system.mapped_files import MappedFiles

_log = logging.getLogger(__name__)

_FOLDER: Final = "models"
_READERS: Final = ("headrace", "onnx", "onnx-ir")
_MOST_BYTES: Final = 2**20
"""What is known of a model does not take more. Some say very much of themselves."""
_FACTS: Final = (
    "defaults",
    "digest",
    "inputs",
    "notes",
    "operators",
    "outputs",
    "properties",
    "random_layers",
    "size",
    "weight_bytes",
    "widened_bytes",
)


class KnownModels:
    """Reads models. Thread-safe.

    A file whose bytes were read before is not read again while it is the same file. It stays open
    for a network that was not read, so that another file may take its place.

    Args:
        cache: the server's cache; None if it has none. Then each model is read at once.
    """

    def __init__(self, cache: NetworkCache | None, limits: Limits) -> None:
        self._cache = cache
        self._limits = limits
        self._notes = None if cache is None else FileNotes(cache)  # digests of files' bytes

    def from_bytes(self, data: Buffer) -> Network:
        """As `Network.from_bytes`. The model is read later, if it is known."""
        limits = self._limits

        def read() -> Network:
            return Network.from_bytes(data, limits, spooled=True)

        if self._cache is None:
            return read()
        digest = _digest(data)
        facts = self._facts(digest)
        return self._spooled(data, facts) if facts is not None else self._noted(digest, read())

    def from_file(self, path: Path, folder: Path, *, spooled: bool, root: Path | None) -> Network:
        """As `Network.from_file`. The model is read later, if it is known and stays loaded."""
        limits = self._limits
        with open_file(path, folder, limits, root) as file:
            known = self._of_file(path, file) if spooled else None
            if known is not None:
                return known
            identity, data = FileIdentity.of(file.fileno()), file.read()
        network = Network.from_data(data, path, folder, limits, spooled=spooled)
        if not spooled or self._cache is None:
            return network
        digest = _digest(data)
        self._saw(path, identity, digest)
        return self._noted(digest, network)

    # -- inside --

    def _of_file(self, path: Path, file: BufferedReader) -> Network | None:
        """The network of a file, which is read later; None if it is not known."""
        if self._notes is None:
            return None
        identity = FileIdentity.of(file.fileno())
        digest = self._notes.get(path, identity)
        if digest is None:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            self._saw(path, identity, digest)
        facts = self._facts(digest)
        if facts is None:
            return None
        kept = _KeptFile(file, digest)
        return Network.unread(
            lambda: Network.from_bytes(kept.read(), self._limits, spooled=True), facts
        )

    def _saw(self, path: Path, identity: FileIdentity, digest: str) -> None:
        if identity.is_settled:
            assert self._notes is not None
            self._notes.set(path, identity, digest)

    def _facts(self, digest: str) -> Mapping[str, Any] | None:
        """What is known of a model; None if nothing is."""
        assert self._cache is not None
        try:
            found = self._cache.read(_FOLDER, self._key(digest))
            return None if found is None else facts_from_json(json.loads(found), _FACTS)
        except (EntryRefused, KeyError, TypeError, ValueError) as error:
            _log.warning("what is known of a model is not used: %s", error)
            return None

    def _spooled(self, data: Buffer, facts: Mapping[str, Any]) -> Network:
        files, kept = MappedFiles(), memoryview(data)
        if len(kept) >= SPOOLED_BYTES:
            (kept,) = files.spool([kept])

        def read() -> Network:
            return Network.from_bytes(kept, self._limits, spooled=True)

        return Network.unread(read, facts, files)

    def _noted(self, digest: str, network: Network) -> Network:
        """Notes what is known of a network now. Returns the network."""
        assert self._cache is not None
        if not network.is_self_contained:
            return network
        text = json.dumps(facts_to_json(network, _FACTS), separators=(",", ":")).encode()
        if len(text) <= _MOST_BYTES:
            try:
                self._cache.write(_FOLDER, self._key(digest), text)
            except (OSError, ValueError) as error:
                _log.warning("what is known of a model is not kept: %s", error)
        return network

    def _key(self, digest: str) -> CacheKey:
        facts = {
            "model": digest,
            "limits": dataclasses.asdict(self._limits),
            **_readers(),
        }
        return CacheKey(json.dumps(facts, sort_keys=True, separators=(",", ":")))


class _KeptFile:
    """A file that stays open, and so is there under whatever name.

    Args:
        digest: of its bytes.
    """

    def __init__(self, file: BufferedReader, digest: str) -> None:
        self._descriptor = os.dup(file.fileno())
        self._digest = digest
        weakref.finalize(self, os.close, self._descriptor)

    def read(self) -> bytes:
        """
        Raises:
            FailedPrecondition: it was written to.
        """
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            data = file.read()
        if _digest(data) != self._digest:
            raise FailedPrecondition(
                "the model's file was written to since the network was loaded; load it again",
                field="model",
            )
        return data


def _digest(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def _readers() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _READERS}
