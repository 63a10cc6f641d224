"""A copy on this machine of a model repository that lies in a store.

    CACHE/.repository/ADDRESS/                  the repository that the server reads
        NAME -> .copies/DIGEST                  a network
        .copies/DIGEST/                         a folder of the store, copied whole
        .copies/DIGEST/VERSION -> ../DIGEST     the folder of a version
        .copies/DIGEST.part/                    a copy that is not complete

A copy is named after the digest of the paths, sizes and tags of its objects. So what has been
copied is not copied again, after a restart either, and what has changed is copied beside what is in
use. Then one link is replaced. Nobody writes into a complete copy. The time of the last write of
each of its files is set to `_UNTOUCHED`: whoever writes into a file changes that, and the file is
copied anew.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import stat
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from headrace.runtime.metrics.families import (
    REPOSITORY_COPIED_BYTES,
    REPOSITORY_COPIES_BYTES,
    REPOSITORY_UP,
)
from headrace.runtime.metrics.series import SeriesSnapshot
from headrace.runtime.system.atomic_file import lock_file, remove_leftovers, write_file
from headrace.server.repository.remote import Object, ObjectChanged, RemoteFolder, StoreAway
from headrace.server.repository.stored import StoredFolder, StoredNetwork, stored_networks

_log = logging.getLogger(__name__)

_UNTOUCHED: Final = 0
"""The time of a copied file's last write, in nanoseconds."""
_COPIES: Final = ".copies"
_PART: Final = ".part"
_LINK: Final = ".link"
_PASSES: Final = 3
"""How often the first look begins anew because the store changes meanwhile."""


class Mirror:
    """Copies the networks of a store into a folder. `root` is the repository of the copies.

    `sync` is called by one thread at a time; `stop` and the rest by any. Another server may use the
    same folder: a lock is held while it changes.

    Args:
        cache: the server's cache. The copies are in a hidden folder of it.
        max_bytes: the limit for all copies together.
        wanted: names of files beside the networks' folders that are copied, too.

    Attributes:
        faults: why the newest files of a network have not been copied, by name.
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
        self._max_bytes = max_bytes
        self._wanted = wanted
        self._copies = self.root / _COPIES
        self._copies.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._seen: dict[str, str] | None = None  # each network's digest at the last look
        self._copied_bytes = self._held_bytes = 0
        self._stopped = threading.Event()

    @property
    def address(self) -> str:
        return self._store.address

    @property
    def is_complete(self) -> bool:
        """Whether a look has succeeded."""
        return self._seen is not None

    @property
    def has_copies(self) -> bool:
        """Whether there are copies, perhaps of an earlier run."""
        return any(link.is_symlink() for link in self.root.iterdir())

    def stop(self) -> None:
        """Has a look in progress fail soon, and each later one."""
        self._stopped.set()

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

    def sync(self) -> None:
        """Brings the copies in line with the store.

        A network is copied when two looks find the same objects, and at the first look at once: a
        store shows each object whole, but not several of them together.

        Raises:
            BlockingIOError: another server is copying this repository.
            OSError: the store cannot be listed or read; what has been copied stays. The text of the
                error says why.
        """
        try:
            lock = lock_file(self.root / ".lock")
        except BlockingIOError as error:
            message = f"{error.strerror} is copying it"
            raise BlockingIOError(errno.EAGAIN, message) from error
        try:
            at_once = self._seen is None
            for _ in range(_PASSES if at_once else 1):
                if not self._pass(at_once=at_once):
                    break
            self.trouble = ""
        except OSError as error:
            self.trouble = error.strerror or type(error).__name__
            raise
        finally:
            os.close(lock)

    def snapshot(self) -> Iterator[SeriesSnapshot]:
        yield SeriesSnapshot(REPOSITORY_UP, (), float(self.is_complete and not self.trouble))
        yield SeriesSnapshot(REPOSITORY_COPIED_BYTES, (), self._copied_bytes)
        yield SeriesSnapshot(REPOSITORY_COPIES_BYTES, (), self._held_bytes)

    # -- inside --

    def _pass(self, *, at_once: bool) -> bool:
        """One look at the store, and what follows from it. Whether the store changed meanwhile.

        Args:
            at_once: copy a network that was not there, or not the same, at the last look.
        """
        there = self._look()
        faults, chosen, held = {}, [], 0
        for name, network in there.items():
            fault = network.fault
            if not fault and held + network.size > self._max_bytes:
                fault = (
                    f"its {network.size:,} bytes do not fit into the {self._max_bytes:,} that "
                    "copies may take (--max-cache-bytes)"
                )
            if fault:
                faults[name] = fault
                continue
            held += network.size
            if at_once or (self._seen or {}).get(name) == network.digest:
                chosen.append(name)
        copied, changed = set(), False
        for name in list(chosen):
            try:
                if self._copy(name, there[name]):
                    copied.add(name)
            except StoreAway:
                raise
            except OSError as error:
                faults[name] = error.strerror or type(error).__name__
                chosen.remove(name)
                changed |= isinstance(error, ObjectChanged | FileNotFoundError)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    self._drop(there[name])
        # A store that does not tell while it is read that an object is another one now tells it
        # here. What was copied under the older name is then wrong.
        now = self._look() if copied else there
        for name in chosen:
            if name in copied and (name not in now or now[name].digest != there[name].digest):
                self._drop(there[name])
                faults[name] = "its files changed while they were copied"
                changed = True
            else:
                self._publish(name, there[name])
        self._remove_links(now)
        seen = {name: network.digest for name, network in now.items()}
        if copied or seen != self._seen:
            self._collect(now)
        for name in faults.keys() - self.faults.keys():
            _log.warning("network %s was not copied: %s", name, faults[name])
        self.faults, self._held_bytes, self._seen = faults, held, seen
        return changed

    def _look(self) -> dict[str, StoredNetwork]:
        self._go_on()
        return stored_networks(self._store.objects(), self._wanted)

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise StoreAway(errno.ECANCELED, "the server is shutting down")

    def _copy(self, name: str, network: StoredNetwork) -> bool:
        """Copies what is missing or damaged. Whether there was anything."""
        before = self._copied_bytes
        copied = [self._fill(folder) for folder in network.folders]
        if any(copied):
            size = self._copied_bytes - before
            _log.info("copied network %s from %s: %d bytes", name, self.address, size)
        return any(copied)

    def _fill(self, folder: StoredFolder) -> bool:
        whole = self._copies / folder.digest
        if whole.is_dir():
            if not _lacking(whole, folder):
                return False
            _log.warning("the copy %s is damaged, and is made anew", whole)
        part = whole.with_name(whole.name + _PART)
        if whole.is_dir():
            shutil.rmtree(part, ignore_errors=True)
            whole.rename(part)
        part.mkdir(mode=0o700, exist_ok=True)
        remove_leftovers(part)
        for path in _lacking(part, folder):
            target = part / path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path in folder.links:
                _link(target, "../" * (path.count("/") + 1) + folder.links[path])
            else:
                write_file(target, self._pieces(folder.files[path]))
                os.utime(target, ns=(_UNTOUCHED, _UNTOUCHED))
        return True

    def _pieces(self, each: Object) -> Iterator[bytes]:
        for piece in self._store.pieces(each):
            self._go_on()
            self._copied_bytes += len(piece)
            yield piece

    def _publish(self, name: str, network: StoredNetwork) -> None:
        for folder in network.folders:
            part = self._copies / (folder.digest + _PART)
            if part.is_dir():
                part.rename(self._copies / folder.digest)
        file = f"/{network.file}" if network.file else ""
        _link(self.root / name, f"{_COPIES}/{network.digest}{file}")

    def _drop(self, network: StoredNetwork) -> None:
        """Removes copies that are not complete or wrong."""
        for folder in network.folders:
            shutil.rmtree(self._copies / (folder.digest + _PART), ignore_errors=True)

    def _remove_links(self, there: Mapping[str, StoredNetwork]) -> None:
        for link in list(self.root.iterdir()):
            if link.is_symlink() and link.name not in there:
                link.unlink()

    def _collect(self, there: Mapping[str, StoredNetwork]) -> None:
        """Removes the copies that no link leads to and no network of the store needs."""
        used = {folder.digest for network in there.values() for folder in network.folders}
        for link in self.root.iterdir():
            if link.is_symlink():
                digest = os.readlink(link).split("/")[1]  # noqa: PTH115 - not where that leads
                used.add(digest)
                for place, folders, _ in os.walk(self._copies / digest):
                    inside = (Path(place) / name for name in folders)
                    used |= {each.readlink().name for each in inside if each.is_symlink()}
        for copy in list(self._copies.iterdir()):
            if copy.name.removesuffix(_PART) not in used:
                shutil.rmtree(copy, ignore_errors=True)


def _lacking(copy: Path, folder: StoredFolder) -> list[str]:
    """The files and links that are not in a copy, or not as they were copied."""
    damaged = [path for path, each in folder.files.items() if not _is_whole(copy / path, each)]
    return damaged + [path for path in folder.links if not (copy / path).is_symlink()]


def _is_whole(path: Path, each: Object) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    now = stat.S_ISREG(facts.st_mode), facts.st_size, facts.st_mtime_ns
    return now == (True, each.size, _UNTOUCHED)


def _link(path: Path, target: str) -> None:
    """Has the link `path` lead to `target`, in one step."""
    if path.is_symlink() and os.readlink(path) == target:  # noqa: PTH115 - its text
        return
    beside = path.with_name(_LINK)
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(path)
