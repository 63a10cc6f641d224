"""Decides which calls are traced, and writes what their spans say about them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol

from headrace.runtime.execution.trace import Span, Trace
from headrace.runtime.loading.entry import plain_name
from headrace.runtime.transform.options import LoadRequest
from headrace.server.tracing.context import CURRENT_SPAN, Parent, parent_of

_DECIDED: ContextVar[bool] = ContextVar("trace_decided", default=False)
"""Whether this task handles a call, which is traced or not."""

_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"))
_SERVER_ERROR: Final = 500

Headers = Iterable[tuple[object, object]]


class Sink(Protocol):
    """Takes spans that have ended."""

    def emit(self, spans: Sequence[Span]) -> None:
        """Takes spans. It never blocks, and any thread may call it."""

    def close(self, seconds: float) -> None:
        """Exports the spans that wait, for at most `seconds`."""


class Tracing:
    """Begins and ends the spans of calls. Thread-safe.

    Args:
        ratio: the part of the calls that are traced, from 0 to 1.
        trusts_parents: whether a call is traced whenever its caller traces it. Otherwise the ratio
            bounds these calls, too. A call that its caller does not trace is never traced.
        draw: gives a random number from 0 to below 1.

    Attributes:
        address: the host and port that gRPC listens on, once they are known.
    """

    def __init__(
        self,
        sink: Sink,
        ratio: float,
        *,
        trusts_parents: bool = False,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._sink = sink
        self._ratio = ratio
        self._trusts_parents = trusts_parents
        self._draw = draw
        self.address: tuple[str, int] | None = None

    def begin(self, name: str, headers: Headers, start: float) -> Span | None:
        """The span of a call that has been let in, or None if it is not traced. The span becomes
        `CURRENT_SPAN`.

        The decision does not depend on the caller's trace id: a caller could choose ids that are
        always traced.

        Args:
            headers: those of the call.
            start: a time of `time.monotonic`.
        """
        _DECIDED.set(True)
        span = None
        # Most calls are decided here, before their headers are read.
        if self._trusts_parents or self._is_drawn():
            parent = parent_of(headers)
            if self._samples(parent):
                span = self._span(name, parent, start)
        CURRENT_SPAN.set(span)
        return span

    def begin_load(self, request: LoadRequest, replaces: bool) -> Span | None:
        """The span of a load: a part of the call that asks for it, or a trace of its own.

        Args:
            replaces: whether the network may replace one that serves.
        """
        name = plain_name(request.name)
        what, now = f"load {name}", time.monotonic()
        call = CURRENT_SPAN.get()
        span = None
        if call is not None:
            span = call.child(what, now)
        elif not _DECIDED.get() and self._is_drawn():
            span = self._span(what, None, now, kind="internal")
        if span is not None:
            span.facts |= {
                "headrace.network": name,
                "headrace.version": request.version,
                "headrace.device": str(request.device),
                "headrace.replaces": replaces,
            }
        return span

    def end_call(self, span: Span, code: str, request: str) -> None:
        """Ends the span of a gRPC call, or of one request of a stream.

        Args:
            code: the name of its status.
            request: the request's id.
        """
        span.facts |= {
            "rpc.system.name": "grpc",
            "rpc.method": span.name,
            "rpc.response.status_code": code,
        }
        self._end(span, code if code in SERVER_FAULTS else "", request, self.address)

    def end_http(self, span: Span, scope: Any, route: str, status: int, request: str) -> None:
        """Ends the span of an HTTP request.

        Args:
            route: the path with placeholders; "" if the server has no such path.
        """
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        span.name = f"{method} {route}" if route else method
        span.facts |= {
            "http.request.method": method,
            "http.response.status_code": status,
            "url.scheme": scope["scheme"],
            "url.path": scope["path"],
        }
        if route:
            span.facts["http.route"] = route
        error = str(status) if status >= _SERVER_ERROR else ""
        self._end(span, error, request, scope.get("server"))

    def close(self, seconds: float) -> None:
        """Exports the spans that wait, for at most `seconds`."""
        self._sink.close(seconds)

    @staticmethod
    def _end(span: Span, status: str, request: str, address: tuple[str, int] | None) -> None:
        if address is not None:
            span.facts["server.address"], span.facts["server.port"] = address
        span.facts["headrace.request_id"] = request
        span.finish(time.monotonic(), status)
        span.trace.end()

    def _samples(self, parent: Parent | None) -> bool:
        """Whether a call is traced that is drawn, or whose caller is trusted."""
        if parent is not None:
            return parent.sampled
        return not self._trusts_parents or self._is_drawn()

    def _is_drawn(self) -> bool:
        return self._ratio >= 1 or self._draw() < self._ratio

    def _span(self, name: str, parent: Parent | None, start: float, kind: str = "server") -> Span:
        if parent is None:
            trace = Trace(random.getrandbits(128) or 1, self._sink.emit)
            return Span(trace, name, 0, start, kind)
        trace = Trace(parent.trace_id, self._sink.emit, parent.state)
        return Span(trace, name, parent.span_id, start, kind)


SERVER_FAULTS: Final = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)
"""The statuses that OpenTelemetry counts as errors of a server. Others are the caller's."""


class RequestSpans:
    """Belongs to the event loop's thread.

    Args:
        method: the stream's method, with its service.
        headers: those of the stream. They name the parent of each request that names none itself.
    """

    __slots__ = ("_headers", "_method", "_open", "_tracing")

    def __init__(self, tracing: Tracing, method: str, headers: Headers) -> None:
        self._tracing = tracing
        self._method = method
        self._headers = tuple(headers)
        self._open: dict[Hashable, Span] = {}

    def begin(self, key: Hashable, headers: Headers | None = None) -> None:
        """Begins a request, which is the current one until `pause`.

        Args:
            headers: those that the request brings itself.
        """
        chosen = self._headers if headers is None else headers
        span = self._tracing.begin(self._method, chosen, time.monotonic())
        if span is not None:
            self._open[key] = span

    def pause(self) -> None:
        """Says that what follows belongs to no request."""
        CURRENT_SPAN.set(None)

    def resume(self, key: Hashable) -> None:
        """Says that what follows belongs to this request."""
        CURRENT_SPAN.set(self._open.get(key))

    def end(self, key: Hashable, name: str, code: str) -> None:
        """Ends a request, if it is traced.

        Args:
            name: the request's id.
            code: the name of its status.
        """
        self.pause()
        span = self._open.pop(key, None)
        if span is not None:
            self._tracing.end_call(span, code, name)
