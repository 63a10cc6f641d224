"""Keeps the repository's own networks in line with their folders."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.errors import (
    AlreadyExists,
    Cancelled,
    FailedPrecondition,
    HeadraceError,
    Internal,
    NotFound,
    StillLoading,
    Unavailable,
    lacks_network,
    may_pass,
)
from headrace.runtime.loading.entry import FIRST_VERSION
from headrace.runtime.loading.registry import NetworkEntry, NetworkState
from headrace.runtime.loading.shadows.shadow import Shadow
from headrace.runtime.pipelines.description import DEVICE as PIPELINE
from headrace.runtime.transform.options import LoadRequest
from headrace.server.logs import log_internal_error
from headrace.server.reconcile import (
    AwaitFiles,
    Condition,
    Have,
    LastLoad,
    LoadVersion,
    ShareRequests,
    TakeOver,
    UnloadVersion,
    Want,
    WantedVersion,
    steps,
)
from headrace.server.repository.description import FIRST_REQUEST, START, Description
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.folder import NetworkFolder, Signature
from headrace.server.repository.status import (
    CLIENTS,
    COPYING,
    REPOSITORY,
    UNLOADED,
    RepositoryStatus,
    error_of,
    rests,
    text_of,
)

_log = logging.getLogger(__name__)


class Follower:
    """Loads and unloads the repository's own networks as their folders change.

    Thread-safe. Methods wait for the disk and never for a load. `lock` guards the statuses and
    orders looks at one network. Loads end on loading threads, which take `lock` too. The core's
    locks are taken under it.

    Args:
        changed: called on any thread with the name of a network that came, failed or went.
    """

    def __init__(
        self, core: Core, files: RepositoryFiles, changed: Callable[[str], object]
    ) -> None:
        self._core = core
        self._files = files
        self._changed = changed
        self.lock = threading.RLock()
        self.statuses: dict[str, RepositoryStatus] = {}

    def start(
        self, shares: Mapping[str, Mapping[str, int]], shadows: Mapping[str, Shadow]
    ) -> list[Future[NetworkEntry]]:
        """Loads all networks of the repository, without waiting for their files to come to rest.
        `shares` and `shadows` have what clients set, by network.

        Raises:
            OSError: the repository cannot be read.
        """
        now = self._files.look()
        begun = []
        for name, folder in now.items():
            with self.lock:
                status = self.statuses.setdefault(name, RepositoryStatus())
                status.shares, status.shadow = dict(shares.get(name, {})), shadows.get(name)
                begun += self._follow(name, folder, at_rest=True)
        return begun

    def poll(self) -> None:
        """Looks for changes, and begins the loads that they need.

        Raises:
            OSError: the repository cannot be read; nothing changes.
        """
        now = self._files.look()
        with self.lock:
            names = now.keys() | self.statuses.keys()
        for name in sorted(names):
            with self.lock:
                self._follow(name, now.get(name))

    def retry(self) -> list[Future[NetworkEntry]]:
        """Begins the loads again that failed for a reason that may have passed, such as those of
        pipelines whose networks were still loading."""
        begun: list[Future[NetworkEntry]] = []
        with self.lock:
            for name, status in self.statuses.items():
                if status.may_pass:
                    begun += self._take_steps(name, status, retry=True)
        return begun

    def load(self, name: str, found: NetworkFolder, *, replace: bool) -> list[Future[NetworkEntry]]:
        """Loads one network as its folder is; `replace` lets it take the place of another one.

        Raises:
            AlreadyExists: the name is in use, or being loaded.
            FailedPrecondition: there is nothing to load. Also raises as `Core.load_network`.
        """
        with self.lock:
            ready = [e for e in self._core.networks.versions(name) if e.executable is not None]
            if ready and not replace:
                raise AlreadyExists(
                    f"network {name!r} exists; choose another name, unload it, or set replace",
                    field="name",
                )
            status = self.statuses.setdefault(name, RepositoryStatus())
            if any(map(status.is_loading, status.loading)):
                raise AlreadyExists(f"network {name!r} is being loaded", field="name")
            status.takes_over = self.is_clients(name)
            status.tried.clear()
            try:
                begun = self._follow(name, found, at_rest=True, strict=True)
            finally:
                status.takes_over &= bool(status.loading)
        if not begun:
            reason = "; ".join(status.reasons.values()) or "the version policy leaves out all"
            raise FailedPrecondition(reason, field="model.repository")
        return begun

    def _follow(
        self,
        name: str,
        now: NetworkFolder | None,
        *,
        at_rest: bool = False,
        strict: bool = False,
    ) -> list[Future[NetworkEntry]]:
        """Brings a network in line with its folder.

        Args:
            at_rest: take the files as they are, without a second look.
            strict: raise errors. Otherwise an error only becomes the reason in the status.
        """
        status = self.statuses.get(name)
        if status is None:
            if now is None:
                return []
            status = self.statuses[name] = RepositoryStatus()
        before, status.seen = status.seen, now
        if now is None:
            if before is None and not status.loading:  # the folder was missing in two looks
                self._forget(name)
            return []
        if self.is_clients(name) and not status.takes_over:
            if status.reasons.get("") != CLIENTS:
                _log.info("network %s of the model repository is not loaded: %s", name, CLIENTS)
            status.reasons = {"": CLIENTS}
            return []
        try:
            description = self._describe(name, status, now, before, at_rest=at_rest)
        except Exception as error:
            if strict:
                raise
            self._fault(name, status, error)
            return []
        if description is None:
            status.reasons[""] = COPYING
            return []
        status.reasons.pop("", None)
        status.want = self._want(status, now, before, description, at_rest=at_rest)
        for version in status.reasons.keys() - now.versions.keys() - {""}:
            del status.reasons[version]
        for version in status.tried.keys() - status.want.versions.keys():
            del status.tried[version]
        return self._take_steps(name, status, retry=True, strict=strict)

    def _describe(
        self,
        name: str,
        status: RepositoryStatus,
        now: NetworkFolder,
        before: NetworkFolder | None,
        *,
        at_rest: bool,
    ) -> Description | None:
        """The description, or None if its file may still be changing."""
        if now.fault:
            if not at_rest and (before is None or before.fault != now.fault):
                return None
            if now.bare and status.reasons.get("") != now.fault:
                status.want = Want()
                status.tried.clear()
                self._take_steps(name, status)
            raise FailedPrecondition(now.fault)
        beside = now.description
        if status.description is not None and status.described == beside.signature:
            return status.description
        if not at_rest and not rests(beside, before.description if before else None):
            return None
        status.description = self._files.describe(name, now)
        status.described = beside.signature
        for version in sorted(status.description.traffic.keys() - now.versions.keys()):
            _log.warning("network %s: no version %s, which its traffic names", name, version)
        self._shadow(name, status)
        return status.description

    def _shadow(self, name: str, status: RepositoryStatus) -> None:
        """Gives the network its shadow, if it has another one."""
        assert status.description is not None
        try:
            self._core.shadows.set(name, status.shadow or status.description.shadow)
        except HeadraceError as error:
            _log.error("network %s has no shadow: %s", name, text_of(error))

    def _want(
        self,
        status: RepositoryStatus,
        now: NetworkFolder,
        before: NetworkFolder | None,
        description: Description,
        *,
        at_rest: bool,
    ) -> Want:
        """What the server should have of a network, as its folder and a client's shares say."""
        shares = status.shares or description.traffic
        named = shares.keys() & now.versions.keys()
        old = before.versions if before is not None else {}
        return Want(
            {
                version: WantedVersion(
                    (now.versions[version].signature, description.of(version)),
                    at_rest=at_rest or rests(now.versions[version], old.get(version)),
                )
                for version in named | description.policy.choose(now.versions.keys() - named)
            },
            shares,
            # A folder that is being replaced is briefly missing.
            unsure=bool(old.keys() - now.versions.keys()),
        )

    def _have(self, name: str, status: RepositoryStatus) -> Have:
        entries = self._core.networks.versions(name)
        own = {entry.key.version: entry for entry in entries if entry.tenancy.owner == REPOSITORY}
        loads = {
            version: LastLoad(
                status.tried.get(version),
                _condition(own.get(version), is_loading=status.is_loading(version)),
                may_pass=version in status.may_pass,
            )
            for version in own.keys() | status.tried.keys() | status.loading.keys()
        }
        return Have(loads, self._core.networks.shares(name), anothers=len(own) < len(entries))

    def _take_steps(
        self, name: str, status: RepositoryStatus, *, retry: bool = False, strict: bool = False
    ) -> list[Future[NetworkEntry]]:
        """Takes the steps towards what is wanted that wait for no load, and returns the loads."""
        begun: list[Future[NetworkEntry]] = []
        waits = False  # for a load, or because one could not begin
        have = self._have(name, status)
        there = status.seen.versions if status.seen is not None else {}
        want = replace(
            status.want,
            gone=have.loads.keys() - there.keys(),
            retry=retry,
            take_over=status.takes_over,
        )
        # The end of a load asks for steps, so nobody hears of it before these are taken.
        with ExitStack() as afterwards:
            for step in steps(have, want):
                if waits and isinstance(step, UnloadVersion | TakeOver):
                    break  # the end of the load, or the next look, asks again
                match step:
                    case LoadVersion(version):
                        waits = True
                        stamp: Any = want.versions[version].stamp
                        try:
                            load = self._begin(name, status, version, stamp, now=strict)
                        except HeadraceError as error:
                            if strict:
                                raise
                            self._failed(name, status, stamp[1], error)
                            continue
                        begun.append(load)
                        ended = partial(self._ended, name, status, stamp[1])
                        afterwards.callback(load.add_done_callback, ended)
                    case AwaitFiles(version):
                        status.reasons[version] = COPYING
                    case ShareRequests(shares):
                        self._core.networks.share(name, shares, ahead=True)
                    case UnloadVersion(version):
                        self.unload(name, partial(_is_own, version))
                    case TakeOver():
                        self.unload(name, lambda entry: entry.tenancy.owner != REPOSITORY)
                        self._core.life.forget_kept(name)
            status.takes_over &= bool(status.loading)
        return begun

    def _begin(
        self,
        name: str,
        status: RepositoryStatus,
        version: str,
        attempt: tuple[Signature, LoadRequest],
        *,
        now: bool,
    ) -> Future[NetworkEntry]:
        """Loads a version, or lists it as known if its first request is to load it.

        Args:
            now: whether somebody asks for the load.
        """
        assert status.seen is not None
        assert status.description is not None
        status.tried[version] = attempt
        status.may_pass.discard(version)
        if status.reasons.get(version) == UNLOADED:
            del status.reasons[version]
        for note in status.seen.notes:
            _log.warning("network %s: %s", name, note)
        read = partial(self._files.network, status.seen, version, spooled=True)
        residence, core = status.description.residence, self._core
        self._shadow(name, status)
        load: Future[NetworkEntry]
        if now or status.takes_over or not self._may_wait(name, status.description, version):
            load = core.load_network(
                attempt[1],
                read,
                replace=status.takes_over,
                on_disk=True,
                owner=REPOSITORY,
                residence=residence,
            )
        else:
            known = core.know_network(attempt[1], read, owner=REPOSITORY, residence=residence)
            load = Future()
            load.set_result(known)
            if status.description.load == START:
                core.networks.cold.load(known)
        status.loading[version] = load
        return load

    def _may_wait(self, name: str, description: Description, version: str) -> bool:
        """Whether a version's first request loads it. One that is loaded and has changed is loaded
        anew beside it."""
        entries = self._core.networks.versions(name)
        if any(each.key.version == version and each.executable is not None for each in entries):
            return False
        device = description.request.device
        budgeted = self._core.is_budgeted(device)
        if description.load and not (budgeted and device.type == PIPELINE):
            return description.load == FIRST_REQUEST
        return budgeted  # the networks of a pipeline's steps may have to be loaded first

    def _ended(
        self, name: str, status: RepositoryStatus, request: LoadRequest, load: Future[NetworkEntry]
    ) -> None:
        error, version = error_of(load), request.version
        with self.lock:
            if status.loading.get(version) is load:  # otherwise a client has unloaded the version
                del status.loading[version]
                if error is None:
                    status.reasons.pop(version, None)
                else:
                    self._failed(name, status, request, error)
            if self.statuses.get(name) is status:
                self._take_steps(name, status)
        self._changed(name)

    def _failed(
        self, name: str, status: RepositoryStatus, request: LoadRequest, error: BaseException
    ) -> None:
        """Records that a version's load failed."""
        version = request.version
        known, reason = _reason_of(error)
        if may_pass(error):
            status.may_pass.add(version)
        if not known:
            log_internal_error(error, where=f"loading {name} version {version}")
        elif status.reasons.get(version) == reason:  # a temporary reason that still holds
            return
        else:
            soon = isinstance(error, Cancelled | Unavailable) or lacks_network(error)
            log = _log.warning if soon else _log.error
            if isinstance(error, StillLoading):  # a pipeline's network, in the order of a start
                log = _log.info
            log("network %s version %s was not loaded: %s", name, version, reason)
        status.reasons[version] = reason
        self._list_failed(name, request, reason)

    def _fault(self, name: str, status: RepositoryStatus, error: Exception) -> None:
        """Records that no version can be loaded. Versions that are already loaded stay."""
        known, reason = _reason_of(error)
        there = self._core.networks.versions(name)
        is_new, status.reasons[""] = status.reasons.get("") != reason, reason
        if is_new and not known:
            log_internal_error(error, where=f"reading the files of network {name}")
        elif is_new:
            _log.error("network %s was not loaded: %s", name, reason)
        elif there:
            return
        nameless = status.seen is not None and status.seen.nameless
        if not nameless and all(entry.state is NetworkState.FAILED for entry in there):
            request = LoadRequest(name, DeviceName.parse("CPU"), origin="repository")
            for version in [entry.key.version for entry in there] or [FIRST_VERSION]:
                self._list_failed(name, replace(request, version=version), reason)

    def _list_failed(self, name: str, request: LoadRequest, reason: str) -> None:
        try:
            self._core.life.list_failed(request, reason, REPOSITORY)
        except HeadraceError:  # an older load of the version serves, or a client has the name
            return
        self._changed(name)

    def _forget(self, name: str) -> None:
        """Removes a network whose folder is gone."""
        have = self._have(name, self.statuses.pop(name))
        for _ in steps(have, None):  # none if a client has the name
            self.unload(name, partial(_is_own, ""))
            self._core.networks.share(name, {}, ahead=True)
            _log.info("network %s is gone from the model repository", name)

    def unload(self, name: str, leaves: Callable[[NetworkEntry], bool]) -> None:
        if any(map(leaves, self._core.networks.versions(name))):
            with suppress(NotFound):  # another caller has unloaded them
                self._core.unload_network(name, stays=lambda entry: not leaves(entry))
            self._changed(name)

    def is_clients(self, name: str) -> bool:
        """Whether a client has a network of that name."""
        return any(
            entry.tenancy.owner != REPOSITORY for entry in self._core.networks.versions(name)
        )


def _reason_of(error: BaseException) -> tuple[bool, str]:
    """Whether the error is one that the caller may see, and what the caller sees."""
    known = isinstance(error, HeadraceError) and not isinstance(error, Internal)
    return known, text_of(error) if known else "an internal error; the log has it"


def _condition(entry: NetworkEntry | None, *, is_loading: bool) -> Condition:
    if is_loading:
        return Condition.LOADING
    if entry is None:
        return Condition.UNLOADED
    # A request loads what is cold, and its load needs no step.
    is_there = entry.state is not NetworkState.FAILED
    return Condition.READY if is_there else Condition.FAILED


def _is_own(version: str, entry: NetworkEntry) -> bool:
    """Whether the entry is the repository's, and of this version, if one is given."""
    return entry.tenancy.owner == REPOSITORY and version in ("", entry.key.version)
