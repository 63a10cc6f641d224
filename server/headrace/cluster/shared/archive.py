"""The desired state in the shared store: one object for each key, and the models that it needs."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection
from typing import Final

from headrace.cluster.desired import VersionedValue
from headrace.cluster.shared.objects import Objects
from headrace.runtime.errors import NotFound

MODELS: Final = "models"
UPLOADS: Final = "uploads"

UNUSED_SECONDS: Final = 3600.0
"""The age at which a model or an upload that no network needs is removed from the store."""

_STATE: Final = "desired"
_KEY: Final = "blob.key"


class Archive:
    """Thread-safe. All methods wait for the store, and raise as `Objects`.

    Args:
        store: as `Objects`.
    """

    def __init__(self, store: str) -> None:
        self._objects = Objects(store)

    def entries(self) -> dict[str, VersionedValue]:
        """The whole state."""
        return dict(map(self._read, self._objects.names(_STATE)))

    def write(self, key: str, entry: VersionedValue) -> None:
        """Writes what a key has, or removes the key."""
        name = f"{_STATE}/{hashlib.sha256(key.encode()).hexdigest()}.json"
        if entry.value is None:
            self._objects.remove(name)
        else:
            facts = {"key": key, "revision": entry.revision, "value": entry.value}
            self._objects.write(name, [json.dumps(facts).encode()])

    def signing_key(self) -> bytes:
        """The key that signs the exports of all replicas. It is made when nobody has made it."""
        try:
            return self._objects.read(_KEY)
        except NotFound:
            self._objects.write(_KEY, [key := secrets.token_bytes(32)])
            return key

    def sweep(self, used: Collection[str]) -> None:
        """Removes old models and uploads, except the models with these digests."""
        for folder in (MODELS, UPLOADS):
            for name in self._objects.names(folder):
                path = f"{folder}/{name}"
                if name.partition(".")[0] in used or self._objects.age(path) < UNUSED_SECONDS:
                    continue
                self._objects.remove(path)

    def _read(self, name: str) -> tuple[str, VersionedValue]:
        facts = json.loads(self._objects.read(f"{_STATE}/{name}"))
        return str(facts["key"]), VersionedValue(int(facts["revision"]), facts["value"])
