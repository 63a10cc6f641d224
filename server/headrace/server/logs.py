"""Structured logs on stderr, as text for people or JSON for machines, with one event a line.

structlog's loggers and the standard library's (the runtime's, grpc's, asyncio's) go through one
handler, so that every line has the same form, a time stamp and the request's id.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from headrace.runtime.execution.trace import names
from headrace.server.tracing.context import CURRENT_SPAN

ROOT = "headrace"

_VALUE_LENGTH = 8192

CURRENT_REQUEST: ContextVar[str] = ContextVar("current_request", default="")
"""The id of the request that this task handles, once it is known."""


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
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _traced,
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
    return [*shared, structlog.dev.ConsoleRenderer(colors=target.isatty())]


def _traced(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Adds the ids of the span, if the line belongs to a request that is traced."""
    for key, text in names(CURRENT_SPAN.get()).items():
        event.setdefault(key, text)
    return event


def _bounded(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Cuts each value of a line to 8 KiB, because a client may have chosen the names in it."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _VALUE_LENGTH:
            half = _VALUE_LENGTH // 2
            event[key] = f"{value[:half]}…{value[-half:]}"
    return event


def new_request_id() -> str:
    """An id that no other request has: 16 hexadecimal digits."""
    return uuid.uuid4().hex[:16]


@contextmanager
def request_id(identifier: str) -> Iterator[None]:
    """Puts `identifier` on every line that is logged inside, in this task or thread."""
    with structlog.contextvars.bound_contextvars(request_id=identifier):
        yield


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
    facts = {"request_id": identifier} if (identifier := request or CURRENT_REQUEST.get()) else {}
    structlog.get_logger(f"{ROOT}.server").error(
        "internal error", error_id=error_id, where=where, **facts, exc_info=error
    )
    return error_id
