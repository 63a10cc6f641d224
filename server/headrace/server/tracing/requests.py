"""The spans of the requests of one stream. Each request is traced, or not, by itself."""

from __future__ import annotations

import time
from collections.abc import Hashable

from headrace.runtime.execution.trace import Span
from headrace.server.tracing.context import CURRENT_SPAN
from headrace.server.tracing.tracing import Headers, Tracing


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
