"""Folders of a store on this machine, each named after the digest of what it holds.

    ROOT/DIGEST/                         a folder; files that nobody has read are empty
    ROOT/DIGEST/VERSION -> ../DIGEST     the folder of a version
    ROOT/DIGEST/.lock                    held by whoever reads, copies or empties the folder
    ROOT/DIGEST.part/                    a folder that is being made
    ROOT/.room                           held while room is given out; says what all files take

A folder has the names of all its files at once. Their bytes are copied when somebody reads it, so a
network that nobody asks for takes no room. A file that is copied has the time `_COPIED` as the time
of its last write, and one that is empty yet has `_EMPTY`. Another time tells that somebody has
written into the file, and it is copied anew.

Whoever reads a folder holds a shared lock on it, and whoever copies or empties it an exclusive one.
So several servers may use one cache. A lock ends with its process.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from headrace.runtime.system import interruption
from headrace.runtime.system.atomic_file import remove_leftovers, write_file
from headrace.server.repository.remote import Object, ObjectChanged, RemoteFolder, StoreAway
from headrace.server.repository.stored import StoredFolder, is_early, is_of_version

_log = logging.getLogger(__name__)

_COPIED: Final = 0
_EMPTY: Final = 10**9
"""Times of a file's last write, in nanoseconds."""
_PART: Final = ".part"
_BESIDE: Final = ".next"
_LOCK: Final = ".lock"
_ROOM: Final = ".room"
_NOTE_BYTES: Final = 24
_TRIES: Final = 3
_PAUSE_SECONDS: Final = 0.5
"""The pause after the first try to copy from a store that is away. The next is twice as long."""
_WAIT_SECONDS: Final = 0.02
"""The pause between two looks at a lock that another thread or server holds."""


class Copies:
    """Thread-safe, and several processes may use one `root`. The locks that it takes are on files:
    those of the folders in the order of their names, and that on room last.

    Args:
        max_bytes: the limit for all files together. The folders that were read least recently are
            emptied to stay within it.
        look: lists the store anew, and sets `known`.

    Attributes:
        known: the folders that the store had at the last look, by digest.
        copied_bytes: how many have been read from the store.
        held_bytes: the size of all files, as far as it was last measured.

    Raises:
        OSError: `root` cannot be made.
    """

    def __init__(
        self, root: Path, store: RemoteFolder, max_bytes: int, look: Callable[[], object]
    ) -> None:
        self.known: Mapping[str, StoredFolder] = {}
        self.copied_bytes = self.held_bytes = 0
        self._root = root
        self._store = store
        self._max_bytes = max_bytes
        self._look = look
        self._stopped = threading.Event()
        self._counting = threading.Lock()  # guards `copied_bytes`
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def stop(self) -> None:
        """Has each copy in progress fail soon, and each later one."""
        self._stopped.set()

    def go_on(self) -> None:
        """Ends the load that this thread does, if nobody wants it any more.

        Raises:
            StoreAway: the server is shutting down.
        """
        interruption.check()
        if self._stopped.is_set():
            raise StoreAway(errno.ECANCELED, "the server is shutting down")

    def make(self, folder: StoredFolder) -> None:
        """Has a folder there, with the names of its files and what is copied early. One thread of
        all servers may call this at a time.

        Raises:
            OSError: as `RemoteFolder.pieces`, or there is no room.
        """
        self.go_on()
        copy = self._root / folder.digest
        if not copy.is_dir():
            part = copy.with_name(copy.name + _PART)
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(mode=0o700)
            _complete(part, folder)
            part.rename(copy)
        if _lacking(copy, folder, folder.early) or _odd(copy, folder):
            with _unless_used(copy) as is_free:  # otherwise it was complete, and is again later
                if is_free:
                    self._fill(copy, folder, folder.early)

    @contextmanager
    def used(self, copies: Iterable[Path]) -> Iterator[None]:
        """Copies what folders lack, and keeps it there meanwhile.

        Raises:
            OSError: as `RemoteFolder.pieces`, or there is no room.
        """
        with ExitStack() as held:
            for copy in sorted(set(copies)):
                held.callback(os.close, self._hold(copy))
            yield

    def is_copied(self, copy: Path) -> bool:
        """Whether no file of a folder would have to be copied now."""
        folder = self.known.get(copy.name)
        if folder is not None:
            return not _lacking(copy, folder, folder.files)
        return all(facts.st_mtime_ns != _EMPTY for _, facts in _files(copy))

    def measure(self) -> None:
        """Measures what all files take."""
        with self._room() as room:
            self._note(room, sum(self._sizes().values()))

    def remove_all_but(self, used: Collection[str]) -> bool:
        """Removes the folders that have none of these digests, and that nobody reads. Whether that
        were all."""
        whole = True
        for copy in list(self._root.iterdir()):
            if copy.name == _ROOM or copy.name.removesuffix(_PART) in used:
                continue
            with _unless_used(copy) as is_free:
                if is_free:
                    shutil.rmtree(copy, ignore_errors=True)
                whole &= is_free
        return whole

    # -- inside --

    def _hold(self, copy: Path) -> int:
        """Locks a folder whose files are all there. The lock ends when the result is closed."""
        descriptor = _opened(copy)
        try:
            self._lock(descriptor, fcntl.LOCK_SH)
            while not self.is_copied(copy):  # another one may empty it between two locks
                self._lock(descriptor, fcntl.LOCK_EX)
                self._copy(copy)
                self._lock(descriptor, fcntl.LOCK_SH)
            if not os.fstat(descriptor).st_nlink:  # the folder was removed
                raise _changed()
            os.utime(copy)  # the last use
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _copy(self, copy: Path) -> None:
        """Copies what a folder lacks, in a few tries. The caller has locked it."""
        pause = _PAUSE_SECONDS
        for left in reversed(range(_TRIES)):
            try:
                if copy.name not in self.known:
                    self._look()
                folder = self.known.get(copy.name)
                if folder is None:
                    raise _changed()
                size = self._fill(copy, folder, folder.files)
                _log.info("copied %s: %d bytes", folder.place, size)
                return
            except StoreAway:
                self.go_on()
                if not left:
                    raise
            self._stopped.wait(pause)
            pause *= 2

    def _fill(self, copy: Path, folder: StoredFolder, paths: Iterable[str]) -> int:
        """Copies those of these files that are not there. Returns their size. The caller has locked
        the folder."""
        remove_leftovers(copy)
        _complete(copy, folder)
        lacking = _lacking(copy, folder, paths)
        size = sum(folder.files[path].size for path in lacking)
        try:
            self._reserve(copy, folder, lacking)
            while lacking:
                path = lacking[-1]
                write_file(copy / path, self._pieces(folder.files[path]))
                os.utime(copy / path, ns=(_COPIED, _COPIED))
                lacking.pop()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):  # keep the disk no fuller than before
                lacking = [path for path in folder.files if path not in folder.early]
            raise
        finally:
            for path in lacking:
                _put_empty(copy / path)
        return size

    def _pieces(self, each: Object) -> Iterator[bytes]:
        for piece in self._store.pieces(each):
            self.go_on()
            with self._counting:
                self.copied_bytes += len(piece)
            yield piece

    def _reserve(self, copy: Path, folder: StoredFolder, paths: Collection[str]) -> None:
        """Makes room for files. Until they are copied, holes of their size stand for them.

        Raises:
            OSError: there is no room.
        """
        needed = sum(folder.files[path].size for path in paths)
        if not needed:
            return
        most = self._max_bytes - needed
        with self._room() as room:
            for path in paths:
                _put_empty(copy / path)
            noted = os.pread(room, _NOTE_BYTES, 0).strip()
            held = int(noted) if noted.isdigit() else self._max_bytes
            if held > most:  # so at most: what has made room or failed may be among it
                held = self._make_room(most, copy)
            self._note(room, held)
            if held > most:
                where = f"the {self._max_bytes:,} that copies may take (--max-cache-bytes)"
                why = "" if most < 0 else f" beside {held:,} that are in use"
                message = f"{needed:,} bytes of {folder.place} do not fit into {where}{why}"
                raise OSError(errno.ENOSPC, message)
            self._note(room, held + needed)
            for path in paths:
                _put_empty(copy / path, folder.files[path].size)

    def _make_room(self, most: int, copy: Path) -> int:
        """Empties other folders until all files take no more than `most`, if that can be. Returns
        what they take. The caller has locked the room."""
        sizes = self._sizes()
        held = sum(sizes.values())
        for other in sorted(sizes, key=_last_use):
            if held <= most:
                break
            if other != copy:
                held -= _emptied(other)
        return held

    @contextmanager
    def _room(self) -> Iterator[int]:
        """Locks the room. Gives the descriptor of its file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._root / _ROOM, flags, 0o600)
        try:
            self._lock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _note(self, room: int, held: int) -> None:
        """Notes for all servers what all files take at most. The caller has locked the room."""
        self.held_bytes = held
        os.pwrite(room, f"{held:<{_NOTE_BYTES - 1}}\n".encode(), 0)

    def _sizes(self) -> dict[Path, int]:
        """What each folder takes, in bytes."""
        folders = [each for each in self._root.iterdir() if each.is_dir()]
        return {each: sum(facts.st_size for _, facts in _files(each)) for each in folders}

    def _lock(self, descriptor: int, kind: int) -> None:
        """Waits for a lock, or for the server's end."""
        while True:
            self.go_on()
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                self._stopped.wait(_WAIT_SECONDS)
            else:
                return


def put_link(path: Path, target: str) -> bool:
    """Has the link `path` lead to `target`, in one step. Whether it led elsewhere."""
    if path.is_symlink() and os.readlink(path) == target:  # noqa: PTH115 - its text
        return False
    beside = path.with_name(_BESIDE)
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(path)
    return True


def _put_empty(path: Path, size: int = 0) -> None:
    """Puts a file in the place of `path` that has no bytes yet. Whoever reads the older one goes
    on with it."""
    beside = path.with_name(_BESIDE)
    beside.unlink(missing_ok=True)
    beside.touch(mode=0o600)
    os.truncate(beside, size)
    os.utime(beside, ns=(_EMPTY, _EMPTY))
    beside.replace(path)


def _complete(copy: Path, folder: StoredFolder) -> None:
    """Puts the names into a folder that are not in it, or that somebody has changed."""
    for path in _odd(copy, folder):
        target = copy / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path in folder.links:
            put_link(target, "../" * (path.count("/") + 1) + folder.links[path])
        else:
            _put_empty(target)


def _odd(copy: Path, folder: StoredFolder) -> list[str]:
    """The files and links of a folder that are not there, or that somebody has changed."""
    odd = [path for path, each in folder.files.items() if not _is_empty(copy / path, each)]
    return odd + [path for path in folder.links if not (copy / path).is_symlink()]


def _is_empty(path: Path, each: Object) -> bool:
    """Whether a file is copied or is known to be empty yet."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return _is_copied(facts, each) or (stat.S_ISREG(facts.st_mode) and facts.st_mtime_ns == _EMPTY)


def _lacking(copy: Path, folder: StoredFolder, paths: Iterable[str]) -> list[str]:
    """Those of these files that are not copied, or not as they were copied."""
    lacking = []
    for path in paths:
        try:
            facts = (copy / path).lstat()
        except OSError:
            lacking.append(path)
            continue
        if not _is_copied(facts, folder.files[path]):
            lacking.append(path)
    return lacking


def _is_copied(facts: os.stat_result, each: Object) -> bool:
    now = stat.S_ISREG(facts.st_mode), facts.st_size, facts.st_mtime_ns
    return now == (True, each.size, _COPIED)


def _files(copy: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files of a folder, without those that links lead to."""
    for place, _, names in os.walk(copy):
        for path in (Path(place, name) for name in names if not name.startswith(".")):
            try:
                facts = path.lstat()
            except OSError:  # it has just gone
                continue
            if stat.S_ISREG(facts.st_mode):
                yield path, facts


def _emptied(copy: Path) -> int:
    """Empties a folder that nobody reads, but for what is copied early. How many bytes that are."""
    freed, own = 0, not is_of_version(copy.name)
    with _unless_used(copy) as is_free:
        for path, facts in _files(copy) if is_free else ():
            if facts.st_size and not (own and is_early(path.name, facts.st_size)):
                _put_empty(path)
                freed += facts.st_size
    if freed:
        _log.info("copy %s made room for others: %d bytes", copy.name[:12], freed)
    return freed


@contextmanager
def _unless_used(copy: Path) -> Iterator[bool]:
    """Locks a folder if nobody reads or copies it. Gives whether it is locked."""
    try:
        descriptor = _opened(copy)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _opened(copy: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(copy / _LOCK, flags, 0o600)
    except FileNotFoundError as error:  # the folder was removed
        raise _changed() from error


def _last_use(copy: Path) -> int:
    try:
        return copy.stat().st_mtime_ns
    except OSError:
        return 0


def _changed() -> ObjectChanged:
    return ObjectChanged(errno.ESTALE, "its files have changed in the store since the last look")
