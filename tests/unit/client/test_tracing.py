"""Spans of the client's calls, in programs that use OpenTelemetry, and nothing in others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headrace.client import aio, errors
from headrace.client.tracing.calls import begin
from tests.support.client_fake import (
    ENDLESS,
    REFUSED,
    Fake,
    connected,
    eventually,
)
from tests.support.patience import PATIENCE_SECONDS

X = np.array([[1, 2], [3, 4]], np.float32)
SERVICE = "headrace.v1.InferenceEngine"


class Traces:
    """The spans of a program with a tracer provider."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._memory = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        # A process has one provider for good, so other tests would get it too.
        monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
        self.tracer = provider.get_tracer("test")

    def of(self, method: str, number: int = 1) -> list[ReadableSpan]:
        def found() -> list[ReadableSpan]:
            name = f"{SERVICE}/{method}"
            return [span for span in self._memory.get_finished_spans() if span.name == name]

        assert eventually(lambda: len(found()) >= number), self._memory.get_finished_spans()
        return found()


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    return Traces(monkeypatch)


def test_each_call_is_a_span_with_the_names_of_the_conventions(
    client: Any, fake: Fake, traces: Traces
) -> None:
    client.network("echo").infer({"x": X})
    host, port = fake.target.rsplit(":", 1)
    for method in ("GetNetwork", "Infer"):
        (span,) = traces.of(method)
        assert span.kind is SpanKind.CLIENT
        assert span.status.status_code is StatusCode.UNSET
        assert span.attributes == {
            "rpc.system.name": "grpc",
            "rpc.method": f"{SERVICE}/{method}",
            "rpc.response.status_code": "OK",
            "server.address": host,
            "server.port": int(port),
        }


def test_a_call_is_part_of_the_span_that_the_program_is_in(fake: Fake, traces: Traces) -> None:
    async def awaited() -> int:
        async with aio.Client(fake.target) as client:
            network = await client.network("echo")
            with traces.tracer.start_as_current_span("program") as program:
                await network.infer({"x": X})
            return program.get_span_context().span_id

    with connected("sync", fake.target) as client:
        network = client.network("echo")
        with traces.tracer.start_as_current_span("program") as program:
            network.infer({"x": X})
    parents = [program.get_span_context().span_id, asyncio.run(awaited())]
    assert [span.parent and span.parent.span_id for span in traces.of("Infer", 2)] == parents


def test_a_failed_call_has_its_status(client: Any, traces: Traces) -> None:
    with pytest.raises(errors.Error) as caught:
        client.network("echo").infer({"x": np.full((1, 1), REFUSED, np.float32)})
    (span,) = traces.of("Infer")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == caught.value.code.name
    assert span.status.description is None


def test_a_request_in_the_background_ends_its_span_when_it_is_cancelled(
    client: Any, fake: Fake, traces: Traces
) -> None:
    request = client.network("echo").start_async({"x": np.full((1, 1), ENDLESS, np.float32)})
    client.network("echo")  # gives asyncio's loop a turn, so that the request is sent
    assert eventually(lambda: fake.requests("Infer"))
    request.cancel()
    request.wait(PATIENCE_SECONDS)
    (span,) = traces.of("Infer")
    assert span.attributes is not None
    assert span.attributes["error.type"] == "CANCELLED"


def test_a_stream_is_one_span(fake: Fake, traces: Traces) -> None:
    with connected("sync", fake.target) as client:
        results = list(client.network("echo").infer_many([{"x": X}] * 3))
    assert len(results) == 3
    (span,) = traces.of("InferStream")
    assert span.status.status_code is StatusCode.UNSET


def test_the_metadata_hold_the_context_and_no_baggage(traces: Traces) -> None:
    from opentelemetry import baggage, context

    token = context.attach(baggage.set_baggage("secret", "1"))
    try:
        begun = begin(f"/{SERVICE}/Infer", "host:1")
    finally:
        context.detach(token)
    assert begun is not None
    begun.end(grpc.StatusCode.OK)
    (span,) = traces.of("Infer")
    assert span.context is not None
    ids = f"{span.context.trace_id:032x}-{span.context.span_id:016x}"
    sent = dict(begun.metadata)
    assert sent.keys() == {"traceparent"}
    assert ids in sent["traceparent"]


def test_a_program_without_a_provider_sends_nothing_more() -> None:
    assert begin(f"/{SERVICE}/Infer", "host:1") is None


def test_a_program_without_opentelemetry_has_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert begin(f"/{SERVICE}/Infer", "host:1") is None


def test_the_client_does_not_import_opentelemetry() -> None:
    code = (
        "import sys, headrace.client, headrace.client.aio\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
