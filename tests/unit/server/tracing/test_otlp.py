"""The export: who the spans are from, where they go, and what a collector that is down costs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.execution.trace import Span, Trace
from headrace.server.tracing.otlp import OtlpSink, exporter
from tests.support.collector import collector_over_grpc, collector_over_http
from tests.support.patience import PATIENCE_SECONDS

PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


def ended(sink: OtlpSink, number: int = 1) -> None:
    """Hands the sink so many spans."""
    for _ in range(number):
        span = Span(Trace(1, sink.emit), "request", 0, 1.0, "server")
        span.finish(2.0)
        span.trace.end()


def resource_of(sink: OtlpSink, memory: InMemorySpanExporter) -> dict[str, object]:
    ended(sink)
    sink.close(60)
    (span,) = memory.get_finished_spans()
    return dict(span.resource.attributes)


def test_spans_say_which_server_they_are_from() -> None:
    memory = InMemorySpanExporter()
    facts = {"service.name": "headrace", "service.instance.id": "1"}
    assert facts.items() <= resource_of(OtlpSink(memory, facts), memory).items()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("OTEL_SERVICE_NAME", "vision"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=vision,deployment.environment.name=test"),
    ],
)
def test_the_operator_s_variables_win(
    variable: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    memory = InMemorySpanExporter()
    facts = {"service.name": "headrace", "service.version": "1"}
    found = resource_of(OtlpSink(memory, facts), memory)
    assert found["service.name"] == "vision"
    assert found["service.version"] == "1"


class Stuck(SpanExporter):
    """An export that does not return before `shutdown`."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.stopped = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.began.set()
        self.stopped.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.stopped.set()


def test_a_stuck_export_neither_blocks_a_request_nor_the_stop() -> None:
    stuck = Stuck()
    sink = OtlpSink(stuck, {"service.name": "headrace"})
    ended(sink, 600)  # more than one batch, so that an export begins at once
    assert stuck.began.wait(PATIENCE_SECONDS)
    ended(sink, 5000)  # more than the queue holds
    sink.close(0)
    assert stuck.stopped.is_set()


def test_the_variables_choose_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(exporter("http://localhost:4317"), OverGrpc)
    monkeypatch.setenv(PROTOCOL, "http/protobuf")
    assert isinstance(exporter("http://localhost:4318"), OverHttp)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    assert isinstance(exporter("http://localhost:4317"), OverGrpc)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "carrier-pigeon")
    with pytest.raises(InvalidArgument, match=r"carrier-pigeon.*grpc, http/protobuf"):
        exporter("http://localhost:4317")


def test_a_variable_that_the_sdk_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    with pytest.raises(InvalidArgument, match=r"OTEL_EXPORTER_OTLP.*soon"):
        exporter("http://localhost:4317")


def test_spans_reach_a_collector_over_grpc() -> None:
    with collector_over_grpc() as collector:
        sink = OtlpSink(exporter(collector.url), {"service.name": "headrace"})
        ended(sink, 3)
        sink.close(60)
        assert [span.name for span in collector.spans] == ["request"] * 3
        assert collector.resource["service.name"] == "headrace"


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_spans_reach_a_collector_over_http(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROTOCOL, "http/protobuf")
    with collector_over_http() as collector:
        sink = OtlpSink(exporter(collector.url + path), {"service.name": "headrace"})
        ended(sink)
        sink.close(60)
        assert [span.name for span in collector.spans] == ["request"]


def silent() -> tuple[socket.socket, str]:
    """A collector that accepts connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_that_never_answers_does_not_hold_the_stop(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROTOCOL, protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    listener, url = silent()
    with listener:
        sink = OtlpSink(exporter(url), {"service.name": "headrace"})
        ended(sink, 600)
        sink.close(0.1)  # pytest's limit of time would end a test that waits for the answer
