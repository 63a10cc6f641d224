"""A repository on this machine whose networks lie in a store.

    CACHE/.repository/ADDRESS/              the repository that the server reads
        NAME -> .copies/DIGEST              a network
        .copies/                            its `Copies`
        .lock                               held by the server that changes the links

What has changed in the store is copied beside what is in use. Then one link is replaced.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.runtime.metrics.families import (
    REPOSITORY_COPIED_BYTES,
    REPOSITORY_COPIES_BYTES,
    REPOSITORY_UP,
)
from headrace.runtime.metrics.series import SeriesSnapshot
from headrace.runtime.system.atomic_file import lock_file
from headrace.server.repository.copies import Copies, put_link
from headrace.server.repository.remote import ObjectChanged, RemoteFolder, StoreAway
from headrace.server.repository.stored import StoredNetwork, files_digest, stored_networks

_log = logging.getLogger(__name__)

_COPIES: Final = ".copies"
_PASSES: Final = 3
"""How often the first look begins anew because the store changes meanwhile."""
_PATIENCE_SECONDS: Final = 10.0
"""For how long a look waits for the one before it, which may wait for a store that hangs."""
_AT_ONCE: Final = 8
"""How many networks' descriptions are copied at a time."""


class Mirror:
    """Follows the networks of a store. `root` is their repository. The names of all files are
    there, and what describes the networks; `used` copies the rest.

    Thread-safe: `_syncing` is held by one `sync` at a time, and `_looking` by one listing, which
    may be within it. Another server may use the same folder: a lock is held while it changes.

    Args:
        cache: the server's cache. The repository is in a hidden folder of it.
        max_bytes: the limit for all copies together.
        wanted: names of files beside the networks' folders that are copied, too.

    Attributes:
        faults: why the newest files of a network are not in the repository, by name.
        trouble: why the last look has failed; empty if it has not.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(
        self, store: RemoteFolder, cache: Path, max_bytes: int, wanted: Collection[str] = ()
    ) -> None:
        address = hashlib.sha256(store.address.encode()).hexdigest()[:16]
        self.root = (cache / ".repository" / address).resolve()
        self.faults: Mapping[str, str] = {}
        self.trouble = ""
        self._store = store
        self._wanted = wanted
        self._folder = self.root / _COPIES
        self._copies = Copies(self._folder, store, max_bytes, self._look)
        self._seen: dict[str, str] | None = None  # each network's digest at the last look
        self._is_clean = False
        self._syncing, self._looking = threading.Lock(), threading.Lock()

    @property
    def address(self) -> str:
        return self._store.address

    @property
    def is_complete(self) -> bool:
        """Whether a look has succeeded."""
        return self._seen is not None

    @property
    def is_syncing(self) -> bool:
        return self._syncing.locked()

    @property
    def has_networks(self) -> bool:
        """Whether there are networks, perhaps of an earlier run."""
        return any(self.root.glob("[!.]*"))

    def stop(self) -> None:
        """Has what is in progress fail soon, and each later look and copy."""
        self._copies.stop()

    def begin(self) -> Future[None]:
        """Does the same as `sync` on a thread of its own, which the process's end waits for not."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                self.sync()
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                done.set_exception(error)
            else:
                done.set_result(None)

        threading.Thread(target=run, name="headrace-copies", daemon=True).start()
        return done

    def sync(self, name: str = "") -> None:
        """Brings the repository in line with the store.

        What has changed is taken when two looks find the same objects, and at the first look at
        once: a store shows each object whole, but not several of them together.

        Args:
            name: the only network to bring in line, at once. Empty for all.

        Raises:
            BlockingIOError: another server is changing this repository, or another thread has
                waited for the store for some time.
            OSError: the store cannot be listed or read; what is there stays. The text of the error
                says why.
        """
        with self._alone():
            try:
                lock = lock_file(self.root / ".lock")
            except BlockingIOError as error:
                message = f"{error.strerror} is copying it"
                raise BlockingIOError(errno.EAGAIN, message) from error
            try:
                at_once = bool(name) or self._seen is None
                for _ in range(_PASSES if at_once else 1):
                    if not self._pass(name, at_once=at_once):
                        break
                self.trouble = ""
            except OSError as error:
                self.trouble = error.strerror or type(error).__name__
                raise
            finally:
                os.close(lock)

    @contextmanager
    def used(self, *folders: Path) -> Iterator[None]:
        """Copies what folders of networks and versions lack, and keeps it there meanwhile.

        Raises:
            OSError: the store cannot be read, or has other files now, or there is no room.
        """
        with self._copies.used(each for each in map(self._copy_of, folders) if each is not None):
            yield

    def is_copied(self, folder: Path) -> bool:
        """Whether a read of the folder of a network or a version needs no copy."""
        copy = self._copy_of(folder)
        return copy is None or self._copies.is_copied(copy)

    def mark(self, folder: Path) -> str:
        """Changes with the files of a folder in the store, and not with those of its versions."""
        copy = self._copy_of(folder)
        return files_digest(copy.name) if copy is not None else ""

    def snapshot(self) -> Iterator[SeriesSnapshot]:
        copies = self._copies
        yield SeriesSnapshot(REPOSITORY_UP, (), float(self.is_complete and not self.trouble))
        yield SeriesSnapshot(REPOSITORY_COPIED_BYTES, (), copies.copied_bytes)
        yield SeriesSnapshot(REPOSITORY_COPIES_BYTES, (), copies.held_bytes)

    # -- inside --

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._syncing.acquire(timeout=_PATIENCE_SECONDS):
            raise BlockingIOError(errno.EAGAIN, f"a look at {self.address} still waits for it")
        try:
            yield
        finally:
            self._syncing.release()

    def _copy_of(self, folder: Path) -> Path | None:
        """The copy that a path of the repository leads into; None if it leads elsewhere."""
        path = folder.resolve()
        if not path.is_relative_to(self._folder) or path == self._folder:
            return None
        return self._folder / path.relative_to(self._folder).parts[0]

    def _pass(self, only: str, *, at_once: bool) -> bool:
        """One look at the store, and what follows from it. Whether the store changed meanwhile.

        Args:
            only: the name of the only network to change; empty for all.
            at_once: take a network that was not there, or not the same, at the last look.
        """
        there = self._look()
        names = there.keys() & {only} if only else there.keys()
        faults = {name: there[name].fault for name in names if there[name].fault}
        chosen = [
            name
            for name in sorted(names - faults.keys())
            if at_once or (self._seen or {}).get(name) == there[name].digest
        ]
        changed = False
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-copies") as threads:
            made = list(threads.map(self._make, (there[name] for name in chosen)))
        for name, error in zip(chosen, made, strict=True):
            if isinstance(error, StoreAway):
                raise error
            if error is not None:
                faults[name] = error.strerror or type(error).__name__
                changed |= isinstance(error, ObjectChanged | FileNotFoundError)
            else:
                network = there[name]
                file = f"/{network.file}" if network.file else ""
                if put_link(self.root / name, f"{_COPIES}/{network.digest}{file}"):
                    self._is_clean = False
        for name in faults.keys() - self.faults.keys():
            _log.warning("network %s was not copied: %s", name, faults[name])
        kept = {} if not only else {name: self.faults[name] for name in self.faults.keys() - {only}}
        self.faults = {**kept, **faults}
        self._remove_links(there, only)
        if only:
            return changed
        if not there and self._seen != {}:
            _log.warning("%s has no networks", self.address)
        seen = {name: network.digest for name, network in there.items()}
        if seen != self._seen or not self._is_clean:
            self._is_clean = self._copies.remove_all_but(self._used(there))
        self._copies.measure()
        self._seen = seen
        return changed

    def _look(self) -> dict[str, StoredNetwork]:
        self._copies.go_on()
        with self._looking:
            there = stored_networks(self._store.objects(), self._wanted)
            self._copies.known = {
                folder.digest: folder for network in there.values() for folder in network.folders
            }
        return there

    def _make(self, network: StoredNetwork) -> OSError | None:
        """Has the folders of a network there. Returns what it failed with."""
        try:
            for folder in network.folders:
                self._copies.make(folder)
        except OSError as error:
            return error
        return None

    def _remove_links(self, there: Mapping[str, StoredNetwork], only: str) -> None:
        for link in list(self.root.iterdir()):
            gone = link.is_symlink() and link.name not in there
            if gone and (not only or link.name == only):
                link.unlink()
                self._is_clean = False

    def _used(self, there: Mapping[str, StoredNetwork]) -> set[str]:
        """The digests of the copies that a link leads to or a network of the store needs."""
        used = {folder.digest for network in there.values() for folder in network.folders}
        for link in self.root.iterdir():
            if link.is_symlink():
                digest = os.readlink(link).split("/")[1]  # noqa: PTH115 - not where that leads
                used.add(digest)
                for place, folders, _ in os.walk(self._folder / digest):
                    inside = (Path(place) / name for name in folders)
                    used |= {each.readlink().name for each in inside if each.is_symlink()}
        return used
