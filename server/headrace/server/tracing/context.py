"""W3C trace context: what a caller says about the trace that its call belongs to.

Anybody may send these headers, so they are read in bounded time, and what is not valid is ignored
without a line in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final, NamedTuple

from headrace.runtime.execution.trace import Span

CURRENT_SPAN: ContextVar[Span | None] = ContextVar("current_span", default=None)
"""The span of the request that this task or thread handles. None if it is not traced."""

MAX_STATE_LENGTH: Final = 512
_MAX_MEMBERS: Final = 32
# Later versions may add more fields after the flags. Version ff is not valid.
_PARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<span>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-[!-~]*)?",
)
_MAX_PARENT_LENGTH: Final = 128
_MEMBER = re.compile(
    r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]",
)
_SAMPLED: Final = 1


class Parent(NamedTuple):
    """The caller's span.

    Attributes:
        sampled: whether the caller traces the call too.
        state: the `tracestate`, "" if there is none or it is not valid.
    """

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""


def parent_of(headers: Iterable[tuple[object, object]]) -> Parent | None:
    """The caller's span as the headers name it, or None if they name none.

    Args:
        headers: text or bytes, with names in lower case.
    """
    parent: str | None = None
    states: list[str] = []
    for name, value in headers:
        if name in ("traceparent", b"traceparent"):
            if parent is not None:
                return None  # the standard allows one
            parent = _text(value)
        elif name in ("tracestate", b"tracestate"):
            states.append(_text(value))
    if parent is None or len(parent) > _MAX_PARENT_LENGTH:
        return None
    match = _PARENT.fullmatch(parent)
    if match is None or (match["version"] == "00" and match["more"]):
        return None
    sampled = bool(int(match["flags"], 16) & _SAMPLED)
    return Parent(int(match["trace"], 16), int(match["span"], 16), sampled, _state(states))


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _state(headers: list[str]) -> str:
    """The valid `tracestate`, or "". One that is too long is dropped as a whole."""
    if not headers or sum(map(len, headers)) > MAX_STATE_LENGTH:
        return ""
    members = [each for header in headers for part in header.split(",") if (each := part.strip())]
    keys = {member.partition("=")[0] for member in members}
    valid = len(keys) == len(members) <= _MAX_MEMBERS and all(map(_MEMBER.fullmatch, members))
    return ",".join(members) if valid else ""
