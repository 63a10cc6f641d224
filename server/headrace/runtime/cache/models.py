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
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.entry import CacheKey, EntryRefused
from headrace.runtime.intake.external import SPOOLED_BYTES
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.read import read_file
from headrace.runtime.network.facts import facts_from_json, facts_to_json
from headrace.runtime.network.network import Network
from headrace.runtime.system.buffers import Buffer
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

    Args:
        cache: the server's cache; None if it has none. Then each model is read at once.
    """

    def __init__(self, cache: NetworkCache | None, limits: Limits) -> None:
        self._cache = cache
        self._limits = limits

    def from_bytes(self, data: Buffer) -> Network:
        """As `Network.from_bytes`. The model is read later, if it is known."""
        limits = self._limits
        return self._known(data, lambda: Network.from_bytes(data, limits, spooled=True))

    def from_file(self, path: Path, folder: Path, *, spooled: bool, root: Path | None) -> Network:
        """As `Network.from_file`. The model is read later, if it is known and stays loaded."""
        data = read_file(path, folder, self._limits, root)

        def read() -> Network:
            return Network.from_data(data, path, folder, self._limits, spooled=spooled)

        return self._known(data, read) if spooled else read()

    # -- inside --

    def _known(self, data: Buffer, read: Callable[[], Network]) -> Network:
        if self._cache is None:
            return read()
        key = self._key(data)
        try:
            found = self._cache.read(_FOLDER, key)
            if found is not None:
                return self._unread(data, found)
        except (EntryRefused, KeyError, TypeError, ValueError) as error:
            _log.warning("what is known of a model is not used: %s", error)
        network = read()
        if network.is_self_contained:
            self._note(key, network)
        return network

    def _unread(self, data: Buffer, found: bytes) -> Network:
        facts = facts_from_json(json.loads(found), _FACTS)
        files, kept = MappedFiles(), memoryview(data)
        if len(kept) >= SPOOLED_BYTES:
            (kept,) = files.spool([kept])

        def read() -> Network:
            return Network.from_bytes(kept, self._limits, spooled=True)

        return Network.unread(read, facts, files)

    def _note(self, key: CacheKey, network: Network) -> None:
        assert self._cache is not None
        text = json.dumps(facts_to_json(network, _FACTS), separators=(",", ":")).encode()
        if len(text) > _MOST_BYTES:
            return
        try:
            self._cache.write(_FOLDER, key, text)
        except (OSError, ValueError) as error:
            _log.warning("what is known of a model is not kept: %s", error)

    def _key(self, data: Buffer) -> CacheKey:
        facts = {
            "model": hashlib.sha256(data).hexdigest(),
            "limits": dataclasses.asdict(self._limits),
            **_readers(),
        }
        return CacheKey(json.dumps(facts, sort_keys=True, separators=(",", ":")))


@cache
def _readers() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _READERS}
