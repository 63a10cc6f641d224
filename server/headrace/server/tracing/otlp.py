"""Hands spans to OpenTelemetry's SDK, which exports them on a thread of its own.

Only this module needs the extra `otel`. The spans have ended, so the SDK's own tracers, which begin
and end spans while the work runs, are not used. They would take ten times as long.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Final

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.execution.trace import Fact, Span

_LAST_SECONDS: Final = 3.0
"""The most time for the last spans, so that a collector that is down does not use up a stop."""
_HURRY_SECONDS: Final = 0.5
_MAX_LENGTH: Final = 256
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_KINDS: Final = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
_FINE: Final = Status(StatusCode.UNSET)
_FAILED: Final = Status(StatusCode.ERROR)
_PROTOCOLS: Final = ("grpc", "http/protobuf")


class OtlpSink:
    """Exports spans. `emit` only appends to the SDK's bounded queue, and drops what has no room.

    Args:
        exporter: sends the spans.
        facts: attributes of this server, for all its spans.
    """

    def __init__(self, exporter: SpanExporter, facts: Mapping[str, str]) -> None:
        # The operator's OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME win over ours.
        self._resource = Resource.create(dict(facts)).merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("headrace", version("headrace"))
        self._exporter = exporter
        self._processor = BatchSpanProcessor(exporter)

    def emit(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._processor.on_end(self._readable(span))

    def close(self, seconds: float) -> None:
        """Waits for at most 3 seconds, and half a second more if the collector does not answer."""
        closing = threading.Thread(target=self._processor.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(min(max(0.0, seconds), _LAST_SECONDS))
        if closing.is_alive():
            logging.getLogger(__name__).warning(
                "the collector of traces did not take the last spans in time; they are lost"
            )
            # This breaks off the export in progress, and makes those that follow fail at once.
            hurry = threading.Thread(target=self._exporter.shutdown, name="traces", daemon=True)
            hurry.start()
            closing.join(_HURRY_SECONDS)

    def _readable(self, span: Span) -> ReadableSpan:
        trace = span.trace
        parent = None
        if span.parent:
            is_remote = span.kind == "server"
            parent = SpanContext(
                trace.id, span.parent, is_remote, _SAMPLED, _trace_state(trace.state)
            )
        facts = {key: _bounded(fact) for key, fact in span.facts.items()}
        if span.status:
            facts["error.type"] = span.status
        # If a caller gives up, the server has not failed.
        failed = span.status not in ("", "CANCELLED")
        return ReadableSpan(
            span.name,
            context=_context(span),
            parent=parent,
            resource=self._resource,
            attributes=facts,
            links=[Link(_context(other)) for other in span.links],
            kind=_KINDS[span.kind],
            status=_FAILED if failed else _FINE,
            start_time=trace.nanoseconds(span.start),
            end_time=trace.nanoseconds(span.end),
            instrumentation_scope=self._scope,
        )


def exporter(endpoint: str | None) -> SpanExporter:
    """The exporter to a collector, for the protocol that OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or
    OTEL_EXPORTER_OTLP_PROTOCOL names; gRPC by default.

    Args:
        endpoint: the collector's URL. None takes it from the SDK's variables.

    Raises:
        InvalidArgument: the variables name another protocol, or have a value that the SDK refuses.
    """
    names = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    given = [(name, text) for name in names if (text := os.environ.get(name, "").strip())]
    name, protocol = given[0] if given else ("", _PROTOCOLS[0])
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as by_grpc

            return by_grpc.OTLPSpanExporter(endpoint=endpoint)
        if protocol == "http/protobuf":
            from opentelemetry.exporter.otlp.proto.http import trace_exporter as by_http

            return by_http.OTLPSpanExporter(endpoint=_path_of_traces(endpoint))
    except (ValueError, OSError, RuntimeError) as error:
        raise InvalidArgument(
            f"a variable OTEL_EXPORTER_OTLP_… of the environment cannot be used: {error}",
            field="otlp_endpoint",
        ) from error
    raise InvalidArgument(
        f"{name} is {protocol[:100]!r}; set it to one of {', '.join(_PROTOCOLS)}", field=name
    )


def _path_of_traces(endpoint: str | None) -> str | None:
    """The URL of a collector's traces. The SDK adds the path itself only to its own variable."""
    if endpoint is None or endpoint.rstrip("/").endswith("/v1/traces"):
        return endpoint
    return endpoint.rstrip("/") + "/v1/traces"


def _bounded(fact: Fact) -> Fact:
    """An attribute's value. A caller may have chosen its text."""
    return fact[:_MAX_LENGTH] if isinstance(fact, str) else fact


def _context(span: Span) -> SpanContext:
    state = _trace_state(span.trace.state)
    return SpanContext(span.trace.id, span.id, False, _SAMPLED, state)


@lru_cache(maxsize=64)
def _trace_state(text: str) -> TraceState:
    """A valid `tracestate` as the SDK keeps it."""
    return TraceState(_pairs(text.split(","))) if text else TraceState()


def _pairs(members: Iterable[str]) -> list[tuple[str, str]]:
    return [(key, value) for key, _, value in (member.partition("=") for member in members)]
