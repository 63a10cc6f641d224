"""Structured logs on stderr, as text for people or JSON for machines, with one event a line.

All loggers are the standard library's and go through one handler, so that every line has the same
form and a time stamp. What a call gives as `extra` are the event's values. A line that a request
causes also has the request's id, and the name of its caller if the caller has one.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import grpc

from headrace.runtime.execution.trace import names
from headrace.server.access.identity import ANONYMOUS, CALLER, STRANGER
from headrace.server.tracing.context import CURRENT_SPAN

ROOT = "headrace"

_TEXT_LENGTH: Final = 8192
_VALUE_LENGTH: Final = 1024
_LONG: Final = ("event", "exception", "stack")
_OF_EVERY_RECORD: Final = frozenset(
    [*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"]
)
_PLAIN: Final = re.compile(r"[^\s='\"\\]*")
"""Values of text lines that need no quotes."""
_COLORS: Final = {"debug": 32, "info": 32, "warning": 33, "error": 31, "critical": 31}

# What would begin another line, or change what a terminal shows.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

CURRENT_REQUEST: ContextVar[str] = ContextVar("current_request", default="")
"""The id of the request that this task handles, once it is known. Threads that load networks for a
request see it too."""


def _callers_stayed(record: logging.LogRecord) -> bool:
    """Leaves out a reply that gRPC could not send because its caller had left. Otherwise any client
    fills the log with tracebacks."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, grpc.aio.InternalError) and "execute_batch" in str(error))


def configure_logging(
    level: str = "info", form: str = "text", stream: TextIO | None = None
) -> logging.Handler:
    """Sends all logs of the process to `stream`, by default stderr.

    `form` is "text" or "json". The new handler replaces the handler of an earlier call. Libraries
    other than headrace log from "warning" on. onnx-ir and uvicorn log from "error" on, and those of
    stores not at all, unless `level` is "debug".

    Returns:
        The installed handler.
    """
    target = stream if stream is not None else sys.stderr
    handler = _Handler(target)
    handler.setFormatter(_Json() if form == "json" else _Text(target.isatty()))
    root = logging.getLogger()
    for installed in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(installed)
    root.addHandler(handler)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_callers_stayed)
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())
    # An odd model or HTTP request of a client is not an event of the server.
    for name in ("onnx_ir", "uvicorn"):
        logging.getLogger(name).setLevel("WARNING" if level == "debug" else "ERROR")
    # They log an error with its text, which we neither need nor trust, whenever a store is away.
    for name in ("fsspec", "s3fs", "gcsfs", "huggingface_hub.utils._http"):
        logging.getLogger(name).setLevel("WARNING" if level == "debug" else "CRITICAL")
    return handler


class _Handler(logging.StreamHandler[TextIO]):
    """Marks the handler as ours, so that the next configuration can replace it."""


class _Events(logging.Formatter):
    """Makes a record an event: its values by name, each bounded."""

    def event(self, record: logging.LogRecord) -> dict[str, Any]:
        event = {
            "timestamp": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="microseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_of_the_request(),
            **{key: value for key, value in vars(record).items() if key not in _OF_EVERY_RECORD},
        }
        # A traceback without local variables, which may hold a client's data or a key.
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            event["stack"] = record.stack_info
        return {key: _bounded(key, value) for key, value in event.items()}


class _Json(_Events):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.event(record))


class _Text(_Events):
    """Writes no character that would begin another line, or control the terminal that shows it. A
    traceback keeps its lines. They are indented, so that none of them looks like an event."""

    def __init__(self, colored: bool) -> None:
        super().__init__()
        self._colored = colored

    def format(self, record: logging.LogRecord) -> str:
        event = self.event(record)
        level = f"{event.pop('level'):<9}"
        if self._colored:
            level = f"\x1b[{_COLORS.get(level.strip(), 0)}m{level}\x1b[0m"
        blocks = [event.pop(key) for key in ("exception", "stack") if key in event]
        time, logger = event.pop("timestamp"), event.pop("logger")
        line = f"{time} [{level}] {_escaped(event.pop('event')):<30} [{logger}]"
        for key, value in sorted(event.items()):
            text = str(value)
            plain = text.isprintable() and _PLAIN.fullmatch(text)
            line += f" {key}={text if plain else repr(text)}"
        below = [f"    {_escaped(each)}" for block in blocks for each in block.split("\n")]
        return "\n".join([line, *below])


def _of_the_request() -> dict[str, str]:
    """The id, the caller and the span of the request that this task or thread works for."""
    facts = names(CURRENT_SPAN.get())
    identifier = CURRENT_REQUEST.get()
    if identifier:
        facts["request_id"] = identifier
    caller = CALLER.get()
    if caller is not ANONYMOUS and caller is not STRANGER:
        facts["who"] = caller.name
    return facts


def _bounded(key: str, value: object) -> object:
    """Cuts the event and its traceback to 8 KiB, and each other value to 1 KiB, because a client
    may have chosen the names in them."""
    if value is None or isinstance(value, bool | int | float):
        return value
    most = _TEXT_LENGTH if key in _LONG else _VALUE_LENGTH
    text = value if isinstance(value, str) else repr(value)
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def _escaped(text: str) -> str:
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class Ration:
    """How many lines a second may be written, in all and for one client. Not thread-safe.

    Without the bound, clients could fill a disk. Without the bound for one client, a loud one could
    hide the others.
    """

    def __init__(
        self, in_all: int, of_one: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._in_all = in_all
        self._of_one = of_one
        self._clock = clock
        self._second = 0
        self._written: Counter[str] = Counter()  # by client, in this second

    def allows(self, client: str) -> bool:
        """Whether a line of this client may be written now. If so, it counts."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._written = second, Counter()
        allowed = self._written[client] < self._of_one and self._written.total() < self._in_all
        if allowed:
            self._written[client] += 1
        return allowed


def new_request_id() -> str:
    """An id that no other request has: 16 hexadecimal digits."""
    return uuid.uuid4().hex[:16]


def log_internal_error(error: BaseException, *, where: str, request: str = "") -> str:
    """Logs a bug with its traceback, a new id, and the id of the request if it is known.

    Args:
        error: the exception. Its text goes to the log only.
        where: the RPC or task that the exception ended.
        request: the request's id. The default is the id of the request that this task handles.

    Returns:
        The new id. The client is told nothing more than this id.
    """
    error_id = new_request_id()
    facts = {"request_id": request} if request else {}
    logging.getLogger(f"{ROOT}.server").error(
        "internal error",
        extra={"error_id": error_id, "where": where, **facts},
        exc_info=error,
    )
    return error_id
