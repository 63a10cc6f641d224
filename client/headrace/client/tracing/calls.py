"""A span for each call, and the trace's context in its metadata, for programs that trace.

The client does not need OpenTelemetry. A program that traces has imported it, so this module looks
whether the program has, and does nothing otherwise.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any, Final

import grpc

_API: Final = "opentelemetry.trace"
_HOST_AND_PORT = re.compile(r"\[?(?P<host>[^\[\]/]+?)\]?:(?P<port>\d+)")


class CallSpan:
    """The span of one call.

    Attributes:
        metadata: what the call sends, so that the server's spans belong to this one.
    """

    __slots__ = ("_api", "_span", "metadata")

    def __init__(self, api: Any, span: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._api = api
        self._span = span
        self.metadata = metadata

    def end(self, code: grpc.StatusCode | None) -> None:
        """Ends the span with the call's status. None if the call ended without one."""
        name = "UNKNOWN" if code is None else code.name
        span = self._span
        span.set_attribute("rpc.response.status_code", name)
        if code is not grpc.StatusCode.OK:
            span.set_attribute("error.type", name)
            span.set_status(self._api.StatusCode.ERROR)
        span.end()


def begin(path: str, address: str) -> CallSpan | None:
    """A span for a call; None if the program does not trace.

    Args:
        path: of the method, as ``/package.Service/Method``.
        address: the server's address, as gRPC takes it.
    """
    api: Any = sys.modules.get(_API)
    if api is None:
        return None
    name = path[1:]
    facts: dict[str, str | int] = {
        "rpc.system.name": "grpc",
        "rpc.method": name,
        "server.address": address,
    }
    found = _HOST_AND_PORT.fullmatch(address)
    if found is not None:
        facts["server.address"] = found["host"]
        facts["server.port"] = int(found["port"])
    tracer = api.get_tracer("headrace.client")
    span = tracer.start_span(name, kind=api.SpanKind.CLIENT, attributes=facts)
    metadata: dict[str, str] = {}
    _propagator().inject(metadata, api.set_span_in_context(span))
    if not metadata:  # no provider is set, and the program is in no trace
        return None
    return CallSpan(api, span, tuple(metadata.items()))


@cache
def _propagator() -> Any:
    """Writes W3C trace context. Baggage, which may hold secrets, is not sent."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
