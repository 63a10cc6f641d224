"""The networks of a model repository, for the server and for clients of every protocol."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple

from headrace.runtime.core import Core
from headrace.runtime.errors import FailedPrecondition, HeadraceError
from headrace.runtime.loading.executor import LoadExecutor
from headrace.runtime.loading.registry import NetworkEntry, NetworkState
from headrace.runtime.loading.shadows.shadow import Shadow
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest, Reference
from headrace.server.logs import log_internal_error
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.folder import NetworkFolder
from headrace.server.repository.follower import Follower
from headrace.server.repository.mirror import Mirror
from headrace.server.repository.status import LEFT_OUT, UNLOADED, RepositoryStatus, error_of


class RepositoryVersion(NamedTuple):
    """A version of a network that the repository holds or that the server has loaded.

    Attributes:
        version: empty if the network has a fault and so has no version.
        state: None if the version is not loaded.
        reason: why the version is not loaded. For a loaded version, why its newest files are not.
        share: the per cent that the version gets of the requests without a version.
        memory_bytes: as `NetworkEntry`.
        idle_seconds: as `NetworkEntry`.
    """

    name: str
    version: str
    state: NetworkState | None
    reason: str
    share: int
    memory_bytes: int = 0
    idle_seconds: float | None = None


class Repository:
    """The networks of the repository's folder, and clients' networks that come from it.

    Thread-safe. Methods wait for the disk and never for a load. Do not call them on the event loop.

    Args:
        changed: called with the name of a network that was loaded, failed, or was removed. The
            call may come on any thread.

    Attributes:
        own: follows the repository's folder.
        threads: where loads by name begin, shared out among who asks. They may all wait for a
            store that does not answer, and other calls do not wait with them.
    """

    def __init__(
        self, core: Core, files: RepositoryFiles, changed: Callable[[str], object]
    ) -> None:
        self.files = files
        self.threads = LoadExecutor(4, asker=core.asker)
        self._core = core
        self._changed = changed
        self.own = Follower(core, files, changed)

    def stop(self) -> bool:
        """Begins no more loads by name. Returns whether a thread still waits for the store."""
        self.threads.stop_loading(wait=False)
        return self.threads.is_busy or self.files.is_refreshing

    def index(self, *, own: bool = False) -> list[RepositoryVersion]:
        """All versions that are in the repository or loaded, in the order of name and number.

        Args:
            own: leave out the networks whose name the repository does not have.

        Raises:
            FailedPrecondition: the repository cannot be read.
        """
        try:
            there = self.files.look()
        except OSError as error:
            message = f"the model repository cannot be read: {error.strerror}"
            raise FailedPrecondition(message) from error
        loaded = set() if own else {entry.key.name for entry in self._core.networks.entries()}
        return [row for name in sorted(there.keys() | loaded) for row in self._rows(name, there)]

    def load(
        self, name: str, reference: Reference, *, replace: bool = False, on_disk: bool = False
    ) -> list[Future[NetworkEntry]]:
        """Loads the network `said.network` as `name`, in the versions that the policy chooses.

        If the names are the same and the client sets no options, the network is the repository's
        own, and polling follows it. Otherwise the network is the client's.

        Args:
            replace: take the place of a network of that name, version by version. When all
                versions are loaded, versions that are not wanted are unloaded.
            on_disk: the same as in `NetworkLife.load`.

        Returns:
            One load for each version, the lowest version first.

        Raises:
            NotFound, FailedPrecondition, InvalidArgument: there is no such network, or its
                description is wrong.
            Also raises as `Core.load_network`.
        """
        if not on_disk:
            self.files.refresh(reference.network)
        folder = self.files.find(reference.network)
        description = self.files.describe(reference.network, folder)
        if name == reference.network and reference == Reference(name) and not on_disk:
            return self.own.load(name, folder, replace=replace)
        wanted = description.policy.choose(folder.versions)
        if not wanted:
            raise FailedPrecondition("the version policy leaves out all versions", field="model")
        described = description.as_said(name, reference)
        versions = [
            (described.of(version), partial(self.files.network, folder, version, spooled=True))
            for version in sorted(wanted, key=int)
        ]
        return self.begin(name, versions, replace=replace, on_disk=on_disk)

    def begin(
        self,
        name: str,
        versions: Sequence[tuple[LoadRequest, Callable[[], Network]]],
        *,
        replace: bool = False,
        on_disk: bool = False,
    ) -> list[Future[NetworkEntry]]:
        """Loads versions of a client's network, which may come from any source.

        Args:
            versions: for each version, how to load it, and a function that reads it on a loading
                thread.
            replace, on_disk: the same as in `load`.

        Raises:
            As `Core.load_network`.
        """
        owner, begun = object(), []
        try:
            for request, read in versions:
                begun.append(
                    self._core.load_network(
                        request, read, replace=replace, on_disk=on_disk, owner=owner
                    )
                )
        except HeadraceError:
            for load in begun:
                self._core.cancel_load(load)
            raise
        left = set(begun)

        def one_ended(load: Future[NetworkEntry]) -> None:
            with self.own.lock:
                left.discard(load)
                if not left and all(error_of(each) is None for each in begun):
                    self.own.unload(name, lambda entry: entry.tenancy.owner is not owner)
            self._changed(name)

        for load in begun:
            load.add_done_callback(one_ended)
        return begun

    def unload(self, name: str, version: str = "") -> Future[None]:
        """Unloads a network, or one version of it, until its files change or a client loads it.

        Raises:
            NotFound: no network has the name, or the network does not have the version.
        """
        with self.own.lock:
            self._core.networks.find(name, version)  # raises before anything is noted
            status = self.own.statuses.get(name)
            if status is not None:
                for each in [version] if version else [*status.want.versions, *status.reasons]:
                    status.reasons[each] = UNLOADED
                    status.may_pass.discard(each)
                    status.loading.pop(each, None)
                if not version:
                    status.shares, status.shadow = {}, None
            unloaded = self._core.unload_network(name, version)
        self._changed(name)
        return unloaded

    def set_traffic(self, name: str, shares: Mapping[str, int]) -> None:
        """Sets how versions of a network share its requests, from the next request on.

        Args:
            shares: the per cent by version. If empty, the description's shares apply again.

        Raises:
            As `Core.set_traffic`.
        """
        with self.own.lock:
            status = self.own.statuses.get(name)
            if self.own.is_clients(name):
                status = None
            described = status.description if status is not None else None
            self._core.set_traffic(name, shares, described.traffic if described else {})
            if status is not None:
                status.shares = dict(shares)

    def set_shadow(self, name: str, shadow: Shadow) -> Future[NetworkEntry] | None:
        """Gives a network a shadow in the place of the one that it has. Returns and raises as
        `Core.set_shadow`."""
        with self.own.lock:
            load = self._core.set_shadow(name, shadow)
            status = self.own.statuses.get(name)
            if status is not None and not self.own.is_clients(name):
                status.shadow = self._core.shadows.get(name)
        return load

    def _rows(self, name: str, there: Mapping[str, NetworkFolder]) -> list[RepositoryVersion]:
        entries = {each.key.version: each for each in self._core.networks.versions(name)}
        folder = there.get(name)
        with self.own.lock:
            status = self.own.statuses.get(name) or RepositoryStatus()
            reasons, wanted = dict(status.reasons), set(status.want.versions)
        shares = self._core.networks.serving(name)
        fault = reasons.get("") or (folder.fault if folder is not None else "")
        versions = entries.keys() | (folder.versions.keys() if folder is not None else set())
        rows = []
        for version in sorted(versions, key=int):
            entry = entries.get(version)
            reason = reasons.get(version) or fault
            if folder is not None and version in folder.versions:
                reason = reason or folder.versions[version].fault
            if entry is not None:
                reason = reason or entry.reason or self._why_cold(entry, folder)
            elif not reason and folder is not None:
                reason = LEFT_OUT if status.seen is not None and version not in wanted else ""
            state = entry.state if entry is not None else None
            row = RepositoryVersion(name, version, state, reason, shares.get(version, 0))
            if entry is not None:
                row = row._replace(
                    memory_bytes=entry.memory_bytes,
                    idle_seconds=entry.idle_seconds,
                )
            rows.append(row)
        if rows or folder is None:
            return rows
        return [RepositoryVersion(name, "", None, fault, 0)]

    def _why_cold(self, entry: NetworkEntry, folder: NetworkFolder | None) -> str:
        version = entry.key.version
        if entry.state not in _COLD or folder is None or version not in folder.versions:
            return _COLD.get(entry.state, "")
        is_copied = self.files.is_copied(folder, version)
        return _COLD[entry.state] if is_copied else _NOT_COPIED


_COLD: Final = {
    NetworkState.KNOWN: "its first request loads it",
    NetworkState.EVICTED: "it made room for others; its next request loads it",
}
_NOT_COPIED: Final = "its next request copies it from the store and loads it"
_log = logging.getLogger(__name__)

_STOP_SECONDS = 2.0
_AWAY_SECONDS, _LONGEST_SECONDS = 1.0, 60.0
"""The first and the longest time between two looks at a store that is away."""


class Poller:
    """Looks every `seconds` seconds on the thread ``headrace-repository``. With 0, never looks; but
    at a store that was away at the start it looks until that has answered once.

    Args:
        mirror: the copy of the repository's store, which is brought in line before each look.
        came: called on that thread after each look that has succeeded.
    """

    def __init__(
        self,
        repository: Repository,
        seconds: float,
        mirror: Mirror | None = None,
        came: Callable[[], object] = lambda: None,
    ) -> None:
        self._repository = repository
        self._seconds = seconds
        self._mirror = mirror
        self._came = came
        self._behind = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-repository", daemon=True)

    def start(self, *, behind: bool = False) -> None:
        """
        Args:
            behind: whether the store has not answered yet.
        """
        self._behind = behind
        if self._seconds or behind:
            self._thread.start()

    def stop(self) -> None:
        """Begins no further look, and waits a short time for a look in progress.

        A short wait is enough: a look cannot change anything once the core has stopped.
        """
        self._stopped.set()
        if self._mirror is not None:
            self._mirror.stop()
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        why = self._mirror.trouble if self._mirror is not None else ""
        pause = _AWAY_SECONDS if self._behind else self._seconds
        while not self._stopped.wait(pause):
            before, why = why, ""
            if self._mirror is not None:
                why = self._tried(self._mirror.sync)
            longest = max(_LONGEST_SECONDS, self._seconds)
            pause = min(2 * pause, longest) if why else self._seconds
            if self._stopped.is_set():
                return
            why = self._tried(self._repository.own.poll) or why
            if why and why != before:
                _log.error("the model repository cannot be read: %s", why)
            elif before and not why:
                _log.info("the model repository can be read again")
            if not why:
                self._came()
            if not pause:
                self._tried(self._repository.own.poll)  # what is missing at two looks is unloaded
                return

    @staticmethod
    def _tried(look: Callable[[], object]) -> str:
        """Why the look has failed; empty if it has not."""
        try:
            look()
        except OSError as error:
            return error.strerror or type(error).__name__
        except Exception as error:  # noqa: BLE001 - the next look may succeed
            log_internal_error(error, where="looking at the model repository")
            return type(error).__name__
        return ""
