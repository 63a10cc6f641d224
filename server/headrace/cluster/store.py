"""The store that the core of a replica saves into: changes of the cluster's desired state.

The core saves a network before it publishes it. So a load that another replica has overtaken fails
before anybody uses its network.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

from headrace.cluster import networks
from headrace.cluster.desired import NOTHING, Value, VersionedValue
from headrace.cluster.keeping import KeeperClient
from headrace.cluster.shared.archive import MODELS
from headrace.cluster.shared.objects import Objects
from headrace.runtime.config.replicas import replicas_of
from headrace.runtime.errors import AlreadyExists, FailedPrecondition, Unavailable
from headrace.runtime.loading.entry import plain_name
from headrace.runtime.loading.shadows.shadow import Shadow
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest

DEVICE: Final = "device/"
EXTENSION: Final = "extension/"
_ATTEMPTS: Final = 8


class Commit(NamedTuple):
    """A change of the desired state."""

    key: str
    revision: int


COMMITS: ContextVar[list[Commit] | None] = ContextVar("COMMITS", default=None)
"""Collects the changes that a call makes, on whatever thread."""

_CONVERGING: ContextVar[bool] = ContextVar("_CONVERGING", default=False)
_SIZE: ContextVar[int] = ContextVar("_SIZE", default=0)  # of the model that this thread keeps


@contextmanager
def converging() -> Iterator[None]:
    """What the core does inside follows the desired state, and does not change it."""
    token = _CONVERGING.set(True)
    try:
        yield
    finally:
        _CONVERGING.reset(token)


class ClusterStore:
    """Implements the core's NetworkStore. Thread-safe: `_lock` guards what the replica has.

    Attributes:
        changed: called after each change of this replica's own, on any thread.
    """

    shared = True

    def __init__(self, objects: Objects, keeper: KeeperClient) -> None:
        self.changed: Callable[[], object] = lambda: None
        self._objects = objects
        self._keeper = keeper
        self._lock = threading.Lock()
        # What the replica has dealt with, whether it succeeded or not.
        self._known: dict[str, VersionedValue] = {}
        self._has: dict[str, Value] = {}
        self._committing: Counter[str] = Counter()

    # -- methods that the core calls --

    @contextmanager
    def keep_model(self, network: Network) -> Iterator[str]:
        digest = network.digest
        with self._lock:
            used = any(
                digest in networks.models(value)
                for value in self._has.values()
                if "versions" in value
            )
        name = model_name(digest)
        # A model that no network needs may be removed at any time, and is written again.
        if not used or not self._objects.has(name):
            self._objects.write(name, network.chunks())
        token = _SIZE.set(network.weight_bytes)
        try:
            yield digest
        finally:
            _SIZE.reset(token)

    def save_network(self, request: LoadRequest, model: str, *, alone: bool) -> None:
        key, stamp, said = networks.key_of(request.name), uuid.uuid4().hex, request.to_json()
        asked, size = replicas_of(request.config), _SIZE.get()

        def change(before: Value | None) -> Value:
            given = request.version, said, model, stamp
            return networks.loaded(before, *given, alone=alone, asked=asked, size=size)

        if not self._commit(key, change):
            shown = plain_name(request.name)
            raise AlreadyExists(
                f"network {shown!r} was changed through another replica meanwhile; load it again",
                field="name",
            )

    def forget_network(self, name: str, versions: Collection[str] | None = None) -> None:
        self._change_network(name, lambda before: networks.unloaded(before, versions))

    def save_shares(self, name: str, shares: Mapping[str, int]) -> None:
        self._change_network(name, lambda before: networks.shared(before, shares))

    def save_shadow(self, name: str, shadow: Shadow) -> None:
        self._change_network(name, lambda before: networks.shadowed(before, shadow))

    def save_changes(self, name: str, version: str, changes: Mapping[str, str]) -> None:
        def change(before: Value) -> Value:
            if version not in before["versions"]:
                return before
            return networks.configured(before, version, changes)

        self._change_network(name, change)

    def save_config(self, device: str, config: Mapping[str, str]) -> None:
        key = f"{DEVICE}{device}"
        before = self._entry(key).value or {"config": {}}
        changes = {k: text for k, text in config.items() if before["config"].get(k) != text}

        def change(there: Value | None) -> Value:
            return {"config": {**(there["config"] if there else {}), **changes}}

        # Clients may set different keys at the same time.
        if changes and not self._commit(key, change, merges=True):
            raise Unavailable(f"many clients configure {device} at the same time; try again")

    def save_extension(self, device: str, functions: bytes) -> None:
        digest = hashlib.sha256(functions).hexdigest()
        if not _CONVERGING.get() and self._entry(f"{EXTENSION}{device}/{digest}").value is None:
            self._objects.write(extension_name(digest), [functions])
            self._commit(f"{EXTENSION}{device}/{digest}", lambda _: {"digest": digest}, merges=True)

    # -- methods that the convergence calls --

    def busy(self, key: str) -> bool:
        """Whether a change of this replica's own is on its way to the keeper."""
        with self._lock:
            return key in self._committing

    def knows(self, key: str) -> int:
        """The revision of the key that the replica has dealt with."""
        return self._entry(key).revision

    def has(self, key: str) -> Value | None:
        """What the replica has of the key."""
        with self._lock:
            return self._has.get(key)

    def keys(self) -> set[str]:
        with self._lock:
            return set(self._known)

    def dealt(self, key: str, entry: VersionedValue, has: Value | None) -> None:
        """Notes that the replica has dealt with the key, and what it has now."""
        with self._lock:
            self._note(key, entry, has)

    # -- inside --

    def _change_network(self, name: str, change: Callable[[Value], Value | None]) -> None:
        key = networks.key_of(name)
        if self._entry(key).value is None:
            return  # it is not in the desired state

        def changed(before: Value | None) -> Value | None:
            return None if before is None else change(before)

        if not self._commit(key, changed):
            raise FailedPrecondition(
                f"network {plain_name(name)!r} was changed through another replica meanwhile; look "
                "at it, and try again",
                field="name",
            )

    def _commit(
        self, key: str, change: Callable[[Value | None], Value | None], *, merges: bool = False
    ) -> bool:
        """Changes a key of the desired state. Returns False if another replica was faster.

        Args:
            merges: whether the change may be made to any value, so that it is tried again.
        """
        if _CONVERGING.get():
            return True
        with self._lock:
            self._committing[key] += 1
        try:
            before = self._entry(key)
            for _ in range(_ATTEMPTS if merges else 1):
                value = change(before.value)
                done = self._keeper.commit(key, value, before.revision)
                if done.newest is None:
                    self._committed(key, VersionedValue(done.revision, value))
                    return True
                before = done.newest
            return False
        finally:
            with self._lock:
                self._committing[key] -= 1
                self._committing += Counter()  # drops counts that are not positive
            self.changed()

    def _committed(self, key: str, entry: VersionedValue) -> None:
        with self._lock:
            self._note(key, entry, entry.value)
        commits = COMMITS.get()
        if commits is not None:
            commits.append(Commit(key, entry.revision))

    def _note(self, key: str, entry: VersionedValue, has: Value | None) -> None:
        if entry.value is None:
            self._known.pop(key, None)
        else:
            self._known[key] = entry
        if has is None:
            self._has.pop(key, None)
        else:
            self._has[key] = has

    def _entry(self, key: str) -> VersionedValue:
        with self._lock:
            return self._known.get(key, VersionedValue(NOTHING, None))


def model_name(digest: str) -> str:
    return f"{MODELS}/{digest}.onnx"


def extension_name(digest: str) -> str:
    """The object of an extension's functions."""
    return f"extensions/{digest}.onnx"
