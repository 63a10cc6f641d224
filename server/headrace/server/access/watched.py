"""Files that may change while the server runs, and the thread that looks at them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from headrace.runtime.errors import HeadraceError, InvalidArgument
from headrace.runtime.system.atomic_file import read_file
from headrace.server.logs import log_internal_error

_log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BYTES = 1 << 20
_LOOK_SECONDS = 0.5
_STOP_SECONDS = 2.0
_SETTLED_NANOSECONDS = 2 * 10**9

# Identifies one state of a file without reading it.
_Mark = tuple[int, ...]


class WatchedFiles(Generic[T]):
    """The value that was last made from one or more files. Any thread may read `value`.

    A file that is missing, emptied, too large or broken does not change the value. The log then
    names the file once. It names it again after the next good state.

    Args:
        paths: the files, for example a certificate and its key.
        parse: makes the value from the bytes of the files, in the order of `paths`. It raises
            `ValueError` or `HeadraceError` with a text that says what is wrong, without secrets.
        field: the setting that names the files, for errors.

    Attributes:
        on_change: called with each new value, on the watcher's thread. It may be set until that
            starts.

    Raises:
        InvalidArgument: the files cannot be read or parsed now.
    """

    def __init__(self, paths: Sequence[Path], parse: Callable[..., T], *, field: str) -> None:
        self._paths = tuple(paths)
        self._parse = parse
        self.on_change: Callable[[T], object] = lambda _: None
        self._failures = 0
        try:
            self._marks = self._look_marks()
            self._contents = self._read()
            self._value = parse(*self._contents)
        except (OSError, ValueError, HeadraceError) as error:
            raise InvalidArgument(f"{self._names}: {_reason(error)}", field=field) from error

    @property
    def value(self) -> T:
        """The value of the last good state of the files."""
        return self._value

    @property
    def is_stale(self) -> bool:
        """Whether the files have been refused twice or more, so that `value` is an earlier one."""
        return self._failures > 1

    def look(self) -> None:
        """Makes a new value if the files have changed. Belongs to the watcher's thread."""
        try:
            marks = self._look_marks()
            if marks is not None and marks == self._marks:
                return
            contents = self._read()
            if contents != self._contents:
                self._refuse_emptied(contents)
                value = self._parse(*contents)
                self._value, self._contents = value, contents
                _log.info("read %s again, because it has changed", self._names)
                self.on_change(value)
            self._marks = marks
            self._failures = 0
        except (OSError, ValueError, HeadraceError) as error:
            # One of two files may be new already, and the other one not yet. So the first failed
            # look is not reported.
            self._failures += 1
            if self._failures == 2:
                _log.error(
                    "%s: %s; the server goes on with the last good state",
                    self._names,
                    _reason(error),
                )

    def _refuse_emptied(self, contents: Sequence[bytes]) -> None:
        """
        Raises:
            ValueError: a file that had a content has none. That is a write that broke off, for
                example on a full disk, and not what somebody wants.
        """
        for path, before, now in zip(self._paths, self._contents, contents, strict=True):
            if before.strip() and not now.strip():
                raise ValueError(f"{path} is empty now; write its content again")

    @property
    def _names(self) -> str:
        return ", ".join(map(str, self._paths))

    def _look_marks(self) -> tuple[_Mark, ...] | None:
        """The marks of the files. None if a file is so new that it may change within its mark."""
        statuses = [path.stat() for path in self._paths]
        newest = max(status.st_mtime_ns for status in statuses)
        if time.time_ns() - newest < _SETTLED_NANOSECONDS:
            return None
        return tuple(
            (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)
            for status in statuses
        )

    def _read(self) -> tuple[bytes, ...]:
        return tuple(read_file(path, MAX_BYTES) for path in self._paths)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot read {error.filename}: {error.strerror}"
    return error.message if isinstance(error, HeadraceError) else str(error)


class Watcher:
    """Looks at files twice a second on the thread ``headrace-files``.

    Without files, there is no thread. `add`, `start` and `stop` belong to one thread, and `add`
    comes before `start`.
    """

    def __init__(self, seconds: float = _LOOK_SECONDS) -> None:
        self._seconds = seconds
        self._files: list[WatchedFiles[Any]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-files", daemon=True)

    def add(self, files: WatchedFiles[Any]) -> None:
        self._files.append(files)

    def start(self) -> None:
        if self._files:
            self._thread.start()

    def stop(self) -> None:
        """Begins no further look, and waits a short time for a look in progress."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            for file in self._files:
                try:
                    file.look()
                except Exception as error:  # noqa: BLE001 - the next look may succeed
                    log_internal_error(error, where="looking at a watched file")
