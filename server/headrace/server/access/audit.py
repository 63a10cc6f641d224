"""The audit log: one JSON line for each managing call and each refused one."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from headrace.runtime.errors import InvalidArgument
from headrace.server.access.quotas import address_of
from headrace.server.logs import Ration

_log = logging.getLogger(__name__)

REFUSALS_A_SECOND: Final = 100
"""The most refused calls in one second that get lines of their own."""

REFUSALS_OF_AN_ADDRESS: Final = 10
"""The most of them from one address, so that one stranger cannot hide the others."""

_WAITING = 10_000
_VALUE_LENGTH = 512
_WAIT_SECONDS = 1.0
_STOP_SECONDS = 2.0

_SUBJECT: ContextVar[str] = ContextVar("subject", default="")


def about(name: str) -> None:
    """Says which network, model, device or region the call of this task is about."""
    _SUBJECT.set(name)


class AuditLine(NamedTuple):
    """One line. The names of the attributes are those of the line.

    Attributes:
        time: when the call ended, in UTC.
        who: the name of the caller's identity.
        method: the RPC, or the method and the path with placeholders.
        name: what the call is about, as far as the server has read that.
        peer: the address that the call came from.
        outcome: the status.
        refusal: why the call was refused. "" if it was not refused.
        request_id: the id of the call in the server's log.
    """

    time: str
    who: str
    method: str
    name: str
    peer: str
    outcome: str
    refusal: str
    request_id: str


def entry(
    who: str, method: str, peer: str, outcome: str, refusal: str, request_id: str, name: str = ""
) -> AuditLine:
    """The line of a call that ends now. The default name is that of the task's call."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return AuditLine(now, who, method, name or _SUBJECT.get(), peer, outcome, refusal, request_id)


class AuditLog:
    """Appends lines to a file on the thread ``headrace-audit``. Any thread may call `write`.

    If another program renames or removes the file, the next line goes to a new file of the old
    name. `write` never waits for the disk: lines beyond a bound are only counted. So are lines that
    cannot be written. One line then says how many there were.

    Args:
        path: the file. It is made if it is missing, for its owner only.
        clock: a monotonic time in seconds.

    Raises:
        InvalidArgument: the file cannot be opened.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[AuditLine | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the two below
        self._refusals = Ration(REFUSALS_A_SECOND, REFUSALS_OF_AN_ADDRESS, clock)
        self._dropped = 0
        self._failing = False
        self._is_torn = False  # whether the file ends within a line, because a disk was full
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise InvalidArgument(
                f"cannot write the audit log {path}: {error.strerror}", field="audit_log"
            ) from error
        self._thread = threading.Thread(target=self._run, name="headrace-audit", daemon=True)
        self._thread.start()

    def write(self, line: AuditLine) -> None:
        with self._lock:
            is_shown = not line.refusal or self._refusals.allows(address_of(line.peer))
            if not is_shown or self._queue.qsize() >= _WAITING:
                self._dropped += 1
                return
        self._queue.put(line)

    def close(self) -> None:
        """Writes what is waiting, for a short time, and ends the thread."""
        self._queue.put(None)
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        ended = False
        while not ended:
            lines: list[AuditLine] = []
            try:
                line = self._queue.get(timeout=_WAIT_SECONDS)
                while line is not None:
                    lines.append(line)
                    line = self._queue.get_nowait()
                ended = True
            except queue.Empty:
                pass
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            text = "".join(map(_text, lines))
            if dropped:
                text += _text(entry("server", "audit", "", "DROPPED", "", "", str(dropped)))
            lost = self._append(text.encode()) if text else 0
            if lost:
                # The line that tells of dropped ones is the last one, and so it is lost too.
                with self._lock:
                    self._dropped += dropped + lost - bool(dropped)
        os.close(self._descriptor)

    def _append(self, data: bytes) -> int:
        """Returns how many lines could not be written."""
        try:
            self._reopen_if_moved()
            if self._is_torn:
                self._is_torn = not os.write(self._descriptor, b"\n")
            while data:
                written = os.write(self._descriptor, data)
                self._is_torn = not data[:written].endswith(b"\n")
                data = data[written:]
            self._failing = False
        except OSError as error:
            if not self._failing:
                _log.error("cannot write the audit log %s: %s", self._path, error.strerror)
            self._failing = True
        return data.count(b"\n")

    def _reopen_if_moved(self) -> None:
        mine = os.fstat(self._descriptor)
        try:
            status = self._path.stat()
        except FileNotFoundError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != (mine.st_dev, mine.st_ino):
            new = self._open()
            os.close(self._descriptor)
            self._descriptor = new
            self._is_torn = False

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o600)  # a pipe without a reader is an error
        os.set_blocking(descriptor, True)
        return descriptor


def _text(line: AuditLine) -> str:
    values = line._asdict()
    # A client may have chosen the name.
    shown = {key: value[:_VALUE_LENGTH] for key, value in values.items() if value}
    return f"{json.dumps(shown)}\n"
