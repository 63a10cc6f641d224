"""Structured logs on stderr, as text for people or JSON for machines, with one event a line.

structlog's loggers and the standard library's (the runtime's, grpc's, asyncio's) go through one
handler, so that every line has the same form and a time stamp. A line that a request causes also
has the request's id, and the name of its caller if the caller has one.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TextIO

import grpc
import structlog
from structlog.typing import EventDict, Processor

from headrace.runtime.execution.trace import names
from headrace.server.access.identity import ANONYMOUS, CALLER, STRANGER
from headrace.server.tracing.context import CURRENT_SPAN

ROOT = "headrace"

_TEXT_LENGTH: Final = 8192
_VALUE_LENGTH: Final = 1024
_LONG: Final = ("event", "exception")
_INDENTED: Final = "exception"

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
    other than headrace log from "warning" on. onnx-ir and uvicorn log from "error" on, unless
    `level` is "debug".

    Returns:
        The installed handler.
    """
    target = stream if stream is not None else sys.stderr
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _of_the_request,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        # Cached loggers would keep the processors of an earlier call.
        cache_logger_on_first_use=False,
    )
    handler = _Handler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(form, target),
            ],
        )
    )
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
    return handler


class _Handler(logging.StreamHandler[TextIO]):
    """Marks the handler as ours, so that the next configuration can replace it."""


def _rendering(form: str, target: TextIO) -> list[Processor]:
    # Tracebacks leave out local variables, which may hold a client's data or a key. They become
    # text first, so that they are bounded too.
    shared: list[Processor] = [structlog.processors.format_exc_info, _bounded]
    if form == "json":
        return [*shared, structlog.processors.JSONRenderer()]
    return [*shared, _on_one_line, structlog.dev.ConsoleRenderer(colors=target.isatty())]


def _of_the_request(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Adds the id, the caller and the span of the request that this task or thread works for."""
    identifier = CURRENT_REQUEST.get()
    if identifier:
        event.setdefault("request_id", identifier)
    caller = CALLER.get()
    if caller is not ANONYMOUS and caller is not STRANGER:
        event.setdefault("who", caller.name)
    for key, text in names(CURRENT_SPAN.get()).items():
        event.setdefault(key, text)
    return event


def _bounded(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Cuts the event and its traceback to 8 KiB, and each other value to 1 KiB, because a client
    may have chosen the names in them."""
    for key, value in event.items():
        if value is None or isinstance(value, bool | int | float):
            continue
        most = _TEXT_LENGTH if key in _LONG else _VALUE_LENGTH
        text = value if isinstance(value, str) else repr(value)
        half = most // 2
        event[key] = text if len(text) <= most else f"{text[:half]}…{text[-half:]}"
    return event


def _on_one_line(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Escapes what would begin another line of text, or control the terminal that shows it.

    A traceback keeps its lines. They are indented, so that none of them looks like an event.
    """
    for key, value in event.items():
        if isinstance(value, str):
            lines = value.split("\n") if key == _INDENTED else [value]
            shown = [_UNPRINTABLE.sub(_escaped, line) for line in lines]
            event[key] = (
                "\n".join(f"    {line}" for line in shown) if key == _INDENTED else shown[0]
            )
    return event


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


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
    structlog.get_logger(f"{ROOT}.server").error(
        "internal error", error_id=error_id, where=where, **facts, exc_info=error
    )
    return error_id
