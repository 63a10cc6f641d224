"""Spans: what a traced request did, and when.

A span is written down when its work has ended, from the time stamps that the work keeps anyway. The
spans of a request are handed over together, when the request ends. So a request that is not traced
costs a look at one attribute, and no thread that computes waits for an exporter.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from random import getrandbits
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from headrace.runtime.system.load_stages import Ended

P = ParamSpec("P")
T = TypeVar("T")

Fact: TypeAlias = str | int | float | bool

MOST_CHILDREN: Final = 256
"""The most parts of one request that are traced. Each has at most a few spans."""
MOST_LINKS: Final = 128


class Exemplar(NamedTuple):
    """Names the traced request that a value in a metric comes from.

    Attributes:
        seconds: the end of the request, since 1970.
    """

    trace_id: str
    span_id: str
    seconds: float


class Trace:
    """The spans of one request, or of one load. Thread-safe: a deque's operations are atomic.

    Args:
        trace_id: 128 bits, not 0.
        emit: takes spans that have ended. Any thread may call it.
        state: the caller's `tracestate`.
    """

    __slots__ = ("_children", "_emit", "_ended", "_is_over", "_since", "id", "state")

    def __init__(
        self, trace_id: int, emit: Callable[[Sequence[Span]], object], state: str = ""
    ) -> None:
        self.id = trace_id
        self.state = state
        self._emit = emit
        self._ended: deque[Span] = deque()
        self._is_over = False
        self._children = 0
        # One offset for all spans, so that a change of the system's clock does not part them.
        self._since = time.time_ns() - time.monotonic_ns()

    def nanoseconds(self, seconds: float) -> int:
        """A time of `time.monotonic` in nanoseconds since 1970."""
        return round(seconds * 1e9) + self._since

    def has_room(self) -> bool:
        """Takes the place of one more part. Returns False if there are too many."""
        self._children += 1
        return self._children <= MOST_CHILDREN

    def add(self, span: Span) -> None:
        """Adds a span that has ended. After the end of the request it is handed over at once."""
        self._ended.append(span)
        if self._is_over:
            self._hand_over()

    def end(self) -> None:
        """Hands over all spans."""
        self._is_over = True
        self._hand_over()

    def _hand_over(self) -> None:
        spans = []
        while self._ended:
            try:
                spans.append(self._ended.popleft())
            except IndexError:  # another thread was faster
                break
        if spans:
            self._emit(spans)


@dataclass(slots=True, eq=False, repr=False)
class Span:
    """One piece of work. One thread at a time writes to it.

    Args:
        parent: the id of the span that it is a part of; 0 for none.
        start: a time of `time.monotonic`.

    Attributes:
        id: 64 bits, not 0.
        kind: "server" for a caller's request, whose parent is the caller's span. Otherwise
            "internal".
        end: 0.0 until it has ended.
        facts: its attributes. They never hold a tensor's values.
        links: other spans that it belongs to.
        status: a status of gRPC; "" or "OK" if the work succeeded.
    """

    trace: Trace
    name: str
    parent: int
    start: float
    kind: str = "internal"
    id: int = field(default_factory=lambda: getrandbits(64) or 1)
    end: float = 0.0
    facts: dict[str, Fact] = field(default_factory=dict)
    links: list[Span] = field(default_factory=list)
    status: str = ""

    def child(self, name: str, start: float = 0.0) -> Span | None:
        """A part of this work, or None if the request has too many parts. Call `finish` at its end.

        Args:
            start: a time of `time.monotonic`; 0.0 if `finish` says it.
        """
        return Span(self.trace, name, self.id, start) if self.trace.has_room() else None

    def add(self, name: str, start: float, end: float, status: str = "", **facts: Fact) -> Span:
        """Adds a part that has ended and has no parts itself."""
        span = Span(self.trace, name, self.id, start)
        span.facts = {f"headrace.{key}": fact for key, fact in facts.items()}
        span.finish(end, status)
        return span

    def link(self, other: Span) -> None:
        """Says that the other span belongs to the same work."""
        if len(self.links) < MOST_LINKS:
            self.links.append(other)

    def finish(self, end: float, status: str = "") -> None:
        """Ends the span.

        Args:
            end: a time of `time.monotonic`.
        """
        self.end, self.status = end, status
        self.trace.add(self)

    @property
    def trace_id(self) -> str:
        """The trace's id as 32 hexadecimal digits."""
        return f"{self.trace.id:032x}"

    @property
    def span_id(self) -> str:
        """The span's id as 16 hexadecimal digits."""
        return f"{self.id:016x}"

    def exemplar(self, end: float) -> Exemplar:
        """Names this span in a metric.

        Args:
            end: the end of the request, a time of `time.monotonic`.
        """
        return Exemplar(self.trace_id, self.span_id, self.trace.nanoseconds(end) / 1e9)


def names(span: Span | None) -> dict[str, str]:
    """The ids of a span, as `extra` of a line in the log. Empty if there is no span."""
    return {} if span is None else {"trace_id": span.trace_id, "span_id": span.span_id}


def parts_of(span: Span | None) -> Ended | None:
    """Takes the stages of a load, which become parts of `span` if there is one."""
    if span is None:
        return None

    def ended(name: str, start: float, end: float, error: BaseException | None) -> None:
        part = span.child(name, start)
        if part is not None:
            part.finish(end, status_of(error))

    return ended


def timed(span: Span | None, function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose end is that of `span` if there is one, even if it is finished later."""
    if span is None:
        return function

    def call(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return function(*arguments, **named)
        finally:
            span.end = time.monotonic()

    return call


def ends_with(span: Span | None, future: Future[T]) -> Future[T]:
    """Finishes the span, if there is one, when the future is done. Returns the future.

    Whoever waits for the future may be told first, so `timed` says when the work has ended.
    """
    if span is not None:
        future.add_done_callback(partial(_end, span))
    return future


def _end(span: Span, future: Future[Any]) -> None:
    error = CancelledError() if future.cancelled() else future.exception()
    span.finish(span.end or time.monotonic(), status_of(error))
    if not span.parent:
        span.trace.end()


def status_of(error: BaseException | None) -> str:
    """The status of work that ended with this error; "" without an error."""
    if isinstance(error, CancelledError):
        return "CANCELLED"
    return "" if error is None else getattr(error, "status", "INTERNAL")
