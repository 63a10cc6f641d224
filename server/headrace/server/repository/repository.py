"""The networks of a model repository, for the server and for clients of every protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from headrace.runtime.core import Core
from headrace.runtime.errors import FailedPrecondition, HeadraceError
from headrace.runtime.loading.registry import NetworkEntry, NetworkState
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest, Reference
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.folder import NetworkFolder
from headrace.server.repository.follower import Follower
from headrace.server.repository.status import LEFT_OUT, UNLOADED, Status, error_of


class RepositoryVersion(NamedTuple):
    """A version of a network that the repository holds or that the server has loaded.

    Attributes:
        version: empty if the network has a fault, and no version.
        state: None if it is not loaded.
        reason: why it is not loaded or, of one that is, why its newest files are not.
        share: per cent of the requests that name no version.
    """

    name: str
    version: str
    state: NetworkState | None
    reason: str
    share: int


class Repository:
    """Thread-safe. Methods wait for the disk and never for a load: call them off the event loop.

    Args:
        changed: told the name of a network that came, failed or went, on any thread.
    """

    def __init__(
        self, core: Core, files: RepositoryFiles, changed: Callable[[str], object]
    ) -> None:
        self.files = files
        self._core = core
        self._changed = changed
        self._own = Follower(core, files, changed)

    def start(self, shares: Mapping[str, Mapping[str, int]]) -> list[Future[NetworkEntry]]:
        """As `Follower.start`."""
        return self._own.start(shares)

    def poll(self) -> None:
        """As `Follower.poll`."""
        self._own.poll()

    def index(self) -> list[RepositoryVersion]:
        """All versions that are there or loaded, by name and number.

        Raises:
            FailedPrecondition: the repository cannot be read.
        """
        try:
            there = self.files.look()
        except OSError as error:
            message = f"the model repository cannot be read: {error.strerror}"
            raise FailedPrecondition(message) from error
        loaded = {entry.key.name for entry in self._core.networks.entries()}
        return [row for name in sorted(there.keys() | loaded) for row in self._rows(name, there)]

    def load(
        self, name: str, said: Reference, *, replace: bool = False, on_disk: bool = False
    ) -> list[Future[NetworkEntry]]:
        """Loads the versions that the policy wants, of the network `said.network` as `name`.

        If nothing else is said, and the names are the same, this is the repository's own network,
        which polling follows; otherwise it is the client's.

        Args:
            replace: take the place of a network of that name, version by version; when all are
                loaded, versions that are not wanted go.
            on_disk: as `NetworkLife.load`.

        Returns:
            One for each version, the lowest first.

        Raises:
            NotFound, FailedPrecondition, InvalidArgument: there is no such network, or its
                description is wrong.
            As `Core.load_network`.
        """
        found = self.files.find(said.network)
        description = self.files.describe(said.network, found)
        if name == said.network and said == Reference(name) and not on_disk:
            return self._own.load(name, found, replace=replace)
        wanted = description.policy.choose(found.versions)
        if not wanted:
            raise FailedPrecondition("the version policy leaves out all versions", field="model")
        described = description.as_said(name, said)
        versions = [
            (described.of(version), partial(self.files.network, found, version, spooled=True))
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
        """Loads versions of a client's network, wherever they are read from.

        Args:
            versions: how to load each, and what reads it on a loading thread.
            replace, on_disk: as `load` has them.

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
            with self._own.lock:
                left.discard(load)
                if not left and all(error_of(each) is None for each in begun):
                    self._own.unload(name, lambda entry: entry.owner is not owner)
            self._changed(name)

        for load in begun:
            load.add_done_callback(one_ended)
        return begun

    def unload(self, name: str, version: str = "") -> Future[None]:
        """Unloads a network, or one version of it, until its files change or a client loads it.

        Raises:
            NotFound: no network has the name, or none of that name the version.
        """
        with self._own.lock:
            status = self._own.statuses.get(name)
            if status is not None:
                for each in [version] if version else [*status.wanted, *status.reasons]:
                    status.reasons[each] = UNLOADED
                if not version:
                    status.shares = {}
            unloaded = self._core.unload_network(name, version)
        self._changed(name)
        return unloaded

    def set_traffic(self, name: str, shares: Mapping[str, int]) -> None:
        """Has versions of a network share its requests, from the next one on.

        Args:
            shares: per cent by version; none to go back to what the description says.

        Raises:
            As `Core.set_traffic`.
        """
        with self._own.lock:
            status = self._own.statuses.get(name)
            own = status is not None and not self._own.is_clients(name)
            described = status.description if status is not None and own else None
            self._core.set_traffic(name, shares, described.traffic if described else {})
            if status is not None:
                status.shares = dict(shares)

    def _rows(self, name: str, there: Mapping[str, NetworkFolder]) -> list[RepositoryVersion]:
        entries = {each.key.version: each for each in self._core.networks.versions(name)}
        found = there.get(name)
        with self._own.lock:
            status = self._own.statuses.get(name) or Status()
            reasons, wanted = dict(status.reasons), set(status.wanted)
        shares = self._core.networks.serving(name)
        fault = reasons.get("") or (found.fault if found is not None else "")
        versions = entries.keys() | (found.versions.keys() if found is not None else set())
        rows = []
        for version in sorted(versions, key=int):
            entry = entries.get(version)
            reason = reasons.get(version) or fault
            if entry is not None:
                reason = reason or entry.reason
            elif not reason and found is not None:
                reason = LEFT_OUT if status.seen is not None and version not in wanted else ""
            state = entry.state if entry is not None else None
            rows.append(RepositoryVersion(name, version, state, reason, shares.get(version, 0)))
        if rows or found is None:
            return rows
        return [RepositoryVersion(name, "", None, fault, 0)]
