"""Networks by name: loading, ready, draining or failed, with counted references.

A name is an alias for one entry. Loading under a name in use goes on beside the old entry and the
switch is one assignment; the old one is closed when its last request has ended. Parts of other
networks are anonymous and never here.
"""

from __future__ import annotations

import enum
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_network_name(name: str) -> str:
    """
    Raises:
        InvalidArgument: `name` is not a valid network name.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name[:200]!r} is not a network name: 1 to 128 letters, digits, '.', '_' and '-', "
            f"beginning with a letter or digit",
            field="name",
        )
    return name


class NetworkState(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class NetworkKey(NamedTuple):
    """Names one load of one network for good."""

    name: str
    generation: int


@dataclass(eq=False, slots=True)
class NetworkEntry:
    """A network in the registry. The registry's lock guards all but `token`, which guards itself.

    `record` is whatever the owner of the registry keeps with a network; `given_up` says why a
    network that is being loaded is no longer wanted.
    """

    key: NetworkKey
    device: str
    record: Any
    state: NetworkState = NetworkState.LOADING
    reason: str = ""
    executable: ExecutableNetwork | None = None
    load_seconds: float = 0.0
    references: int = 0
    given_up: HeadraceError | None = None
    token: CancelToken = field(default_factory=CancelToken)
    on_drained: Callable[[], object] | None = None


class NetworkRegistry:
    """Thread-safe; `_lock` guards the table and its entries, callbacks run outside it.

    Args:
        limit: networks at once that are loaded, being loaded or draining. A name that is being
            replaced counts twice, because old and new live side by side. A load that was given up
            counts until its backend returns.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._current: dict[str, NetworkEntry] = {}
        self._loading: dict[str, NetworkEntry] = {}
        self._given_up: dict[NetworkKey, NetworkEntry] = {}  # their backends still work
        self._draining: dict[NetworkKey, NetworkEntry] = {}
        self._generation = 0

    def reserve(
        self, name: str, device: str, record: Any, *, replace: bool = False
    ) -> NetworkEntry:
        """An entry that is being loaded.

        Raises:
            AlreadyExists: the name is in use, or being loaded.
            ResourceExhausted: there are as many networks as the server allows.
        """
        check_network_name(name)
        with self._lock:
            if name in self._loading:
                raise AlreadyExists(f"network {name!r} is being loaded", field="name")
            current = self._current.get(name)
            if current is not None and not replace and current.state is not NetworkState.FAILED:
                raise AlreadyExists(
                    f"network {name!r} exists; choose another name, unload it, or set replace",
                    field="name",
                )
            ready = {key for key, each in self._current.items() if each.state is NetworkState.READY}
            # A replacement takes the room of what it replaces, unless one is still leaving.
            replaces = name in ready and all(key.name != name for key in self._draining)
            leaving = len(self._draining) + len(self._given_up)
            count = len(ready | self._loading.keys()) + leaving
            if not replaces and count >= self._limit:
                raise ResourceExhausted(
                    f"{count} networks are loaded or being unloaded, as many as the server allows; "
                    f"unload one"
                )
            entry = self._loading[name] = self._entry(name, device, record)
            return entry

    def list_failed(self, name: str, device: str, record: Any, reason: str) -> None:
        """Lists a network whose load could not even begin, whatever the limit.

        Raises:
            AlreadyExists: the name is in use, or being loaded.
        """
        check_network_name(name)
        with self._lock:
            if name in self._current or name in self._loading:
                raise AlreadyExists(f"network {name!r} exists", field="name")
            entry = self._entry(name, device, record)
            entry.state = NetworkState.FAILED
            entry.reason = reason
            self._current[name] = entry

    def publish(
        self,
        entry: NetworkEntry,
        executable: ExecutableNetwork,
        on_replaced_drained: Callable[[NetworkEntry], object],
    ) -> None:
        """Makes the entry what its name stands for; one it replaces drains and is then passed to
        `on_replaced_drained`."""
        with self._lock:
            del self._loading[entry.key.name]
            entry.executable = executable
            entry.state = NetworkState.READY
            old = self._current.get(entry.key.name)
            self._current[entry.key.name] = entry
            drained = old is not None and self._drain(old, lambda: on_replaced_drained(old))
        if old is not None and drained:
            self._drained(old)

    def give_up(self, entry: NetworkEntry, error: HeadraceError) -> bool:
        """Marks a network that is being loaded as no longer wanted, and takes its name away; False
        if it is not being loaded any more."""
        with self._lock:
            if entry.state is not NetworkState.LOADING:
                return False
            entry.given_up = entry.given_up or error
            if self._loading.get(entry.key.name) is entry:
                self._given_up[entry.key] = self._loading.pop(entry.key.name)
            return True

    def fail(self, entry: NetworkEntry, reason: str, *, keep: bool) -> None:
        """The load came to nothing. With `keep`, and if nothing else has the name, the entry stays
        in the list with its reason."""
        with self._lock:
            if self._given_up.pop(entry.key, None) is None:
                del self._loading[entry.key.name]
            entry.state = NetworkState.FAILED
            entry.reason = reason
            current = self._current.get(entry.key.name)
            if keep and (current is None or current.state is NetworkState.FAILED):
                self._current[entry.key.name] = entry

    def acquire(self, name: str) -> NetworkEntry:
        """The ready network of that name, with a reference that the caller gives back.

        Raises:
            NotFound: no network has the name.
            Unavailable: it is being loaded.
            FailedPrecondition: it failed to load.
        """
        with self._lock:
            entry = self._current.get(name)
            if entry is not None and entry.state is NetworkState.READY:
                entry.references += 1
                return entry
            entry = entry or self._loading.get(name)
        raise self._unusable(name, entry)

    def release(self, entry: NetworkEntry, _: object = None) -> None:
        """Gives back a reference; as an observer of a job, too."""
        with self._lock:
            entry.references -= 1
            drained = entry.state is NetworkState.DRAINING and entry.references == 0
        if drained:
            self._drained(entry)

    def submit(self, entry: NetworkEntry, job: Job) -> None:
        """Submits to an acquired network; the reference is given back when the job has ended, or
        at once if it is refused. Raises as `ExecutableNetwork.submit`."""
        assert entry.executable is not None
        job.generation = entry.key.generation

        give_back = partial(self.release, entry)
        job.observe(give_back)
        try:
            entry.executable.submit(job)
        except BaseException:
            job.forget(give_back)
            self.release(entry)
            raise

    def retire(self, name: str, on_drained: Callable[[NetworkEntry], object]) -> NetworkEntry:
        """Takes the name away at once; `on_drained` is called when no reference is left.

        Raises:
            NotFound: no network has the name.
            Unavailable: it is still being loaded.
        """
        with self._lock:
            entry = self._current.pop(name, None)
            loading = self._loading.get(name)
            if entry is None:
                unusable = self._unusable(name, loading)
            else:
                drained = self._drain(entry, lambda: on_drained(entry))
        if entry is None:
            raise unusable
        if drained:
            self._drained(entry)
        return entry

    def find(self, name: str) -> NetworkEntry:
        """The network of that name in whatever state.

        Raises:
            NotFound: no network has the name.
        """
        with self._lock:
            entry = self._current.get(name) or self._loading.get(name)
        if entry is None:
            raise self._unusable(name, None)
        return entry

    def entries(self) -> list[NetworkEntry]:
        """All networks: current ones, then those being loaded, then those that drain."""
        with self._lock:
            return [
                *self._current.values(),
                *self._loading.values(),
                *self._draining.values(),
            ]

    def failed(self) -> list[str]:
        """Names of the networks that are listed though they did not load."""
        with self._lock:
            current = sorted(self._current.items())
            return [name for name, each in current if each.state is NetworkState.FAILED]

    def _entry(self, name: str, device: str, record: Any) -> NetworkEntry:
        self._generation += 1
        return NetworkEntry(NetworkKey(name, self._generation), device, record)

    def _drain(self, entry: NetworkEntry, then: Callable[[], object]) -> bool:
        entry.state = NetworkState.DRAINING
        entry.on_drained = then
        self._draining[entry.key] = entry
        return entry.references == 0

    def _drained(self, entry: NetworkEntry) -> None:
        with self._lock:
            then, entry.on_drained = entry.on_drained, None
            self._draining.pop(entry.key, None)
        if then is not None:
            then()

    def _unusable(self, name: str, entry: NetworkEntry | None) -> Exception:
        if entry is None:
            return NotFound.unknown("network", name[:200], list(self._current), field="network")
        if entry.state is NetworkState.FAILED:
            return FailedPrecondition(f"network {name!r} failed to load: {entry.reason}")
        return Unavailable(f"network {name!r} is still being loaded")
