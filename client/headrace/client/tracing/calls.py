"""A span for each call, and the trace's context in its metadata, for programs that trace.

The client does not need OpenTelemetry. A program that traces has imported it, so this module looks
whether the program has, and does nothing otherwise.
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache
from types import ModuleType
from typing import Any, Final

import grpc

_API: Final = "opentelemetry.trace"
_HOST_AND_PORT = re.compile(r"\[?(?P<host>[^\[\]/]+?)\]?:(?P<port>\d+)")


def traced(call: Any, path: str, address: str) -> Any:
    """gRPC's callable of a method, with spans if the program uses OpenTelemetry.

    Args:
        path: of the method, as ``/package.Service/Method``.
        address: the server's address, as gRPC takes it.
    """
    api = sys.modules.get(_API)
    return call if api is None else TracedCall(call, api, path, address)


class TracedCall:
    """A channel's callable that makes a span of each call. It does nothing if no tracer provider
    is set."""

    __slots__ = ("_address", "_api", "_call", "_path")

    def __init__(self, call: Any, api: ModuleType, path: str, address: str) -> None:
        self._call = call
        self._api: Any = api
        self._path = path
        self._address = address

    def __call__(self, *request: Any, timeout: float | None = None) -> Any:
        return self._traced(self._call, *request, timeout=timeout)

    def with_call(self, request: Any, *, timeout: float | None = None) -> Any:
        return self._traced(self._call.with_call, request, timeout=timeout)

    def future(self, request: Any, *, timeout: float | None = None) -> Any:
        return self._traced(self._call.future, request, timeout=timeout)

    def _traced(self, start: Any, *request: Any, timeout: float | None) -> Any:
        span = self._begin()
        metadata: dict[str, str] = {}
        _propagator().inject(metadata, self._api.set_span_in_context(span))
        if not metadata:  # no provider is set, and the program is in no trace
            return start(*request, timeout=timeout)
        try:
            result = start(*request, timeout=timeout, metadata=tuple(metadata.items()))
        except BaseException as error:
            self._end(span, error.code() if isinstance(error, grpc.RpcError) else None)
            raise
        if hasattr(result, "add_done_callback"):  # the call goes on
            result.add_done_callback(lambda call: self._end(span, _code(call)))
        else:
            self._end(span, grpc.StatusCode.OK)
        return result

    def _begin(self) -> Any:
        name = self._path[1:]
        facts: dict[str, str | int] = {
            "rpc.system.name": "grpc",
            "rpc.method": name,
            "server.address": self._address,
        }
        address = _HOST_AND_PORT.fullmatch(self._address)
        if address is not None:
            facts["server.address"] = address["host"]
            facts["server.port"] = int(address["port"])
        tracer = self._api.get_tracer("headrace.client")
        return tracer.start_span(name, kind=self._api.SpanKind.CLIENT, attributes=facts)

    def _end(self, span: Any, code: grpc.StatusCode | None) -> None:
        name = "UNKNOWN" if code is None else code.name
        span.set_attribute("rpc.response.status_code", name)
        if code is not grpc.StatusCode.OK:
            span.set_attribute("error.type", name)
            span.set_status(self._api.StatusCode.ERROR)
        span.end()


@cache
def _propagator() -> Any:
    """Writes W3C trace context. Baggage, which may hold secrets, is not sent."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _code(call: Any) -> grpc.StatusCode | None:
    """The status of a call that has ended. asyncio's calls give a coroutine, which then returns at
    once."""
    code = call.code()
    if inspect.iscoroutine(code):
        try:
            code.send(None)
        except StopIteration as end:
            code = end.value
        else:
            code.close()
            return None
    return code if isinstance(code, grpc.StatusCode) else None
