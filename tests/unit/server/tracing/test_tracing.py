"""Which calls are traced, and what the exported spans say of them."""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.execution.trace import Span
from headrace.runtime.transform.options import LoadRequest
from headrace.server.tracing.context import CURRENT_SPAN
from headrace.server.tracing.otlp import OtlpSink
from headrace.server.tracing.tracing import RequestSpans, Tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = (("traceparent", f"00-{TRACE}-{SPAN}-01"), ("tracestate", "vendor=1"))
UNSAMPLED = (("traceparent", f"00-{TRACE}-{SPAN}-00"),)
METHOD = "headrace.v1.InferenceEngine/Infer"


@pytest.fixture(autouse=True)
def _own_context() -> Iterator[None]:
    """The test's own current span, for tests run in one thread."""
    token = CURRENT_SPAN.set(None)
    yield
    CURRENT_SPAN.reset(token)


class Exported:
    """A sink with the SDK's in-memory exporter behind it."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        self.sink = OtlpSink(self._memory, {"service.name": "headrace"})

    def spans(self) -> list[ReadableSpan]:
        self.sink.close(60)
        return list(self._memory.get_finished_spans())

    def span(self) -> ReadableSpan:
        (span,) = self.spans()
        return span


@pytest.fixture
def exported() -> Exported:
    return Exported()


def traces(tracing: Tracing, headers: Sequence[tuple[str, str]], times: int = 1000) -> int:
    return sum(tracing.begin(METHOD, headers, 1.0) is not None for _ in range(times))


def evenly() -> Callable[[], float]:
    """Numbers from 0 to below 1, a hundredth apart."""
    numbers = itertools.cycle(range(100))
    return lambda: next(numbers) / 100


@pytest.mark.parametrize(
    ("trusts", "headers", "share"),
    [
        (False, (), 0.1),
        (False, SAMPLED, 0.1),
        (False, UNSAMPLED, 0.0),
        (True, (), 0.1),
        (True, SAMPLED, 1.0),
        (True, UNSAMPLED, 0.0),
        (False, (("traceparent", f"00-{'0' * 31}1-{SPAN}-01"),), 0.1),
    ],
)
def test_a_caller_cannot_force_more_traces_than_the_ratio_unless_it_is_trusted(
    exported: Exported, trusts: bool, headers: Sequence[tuple[str, str]], share: float
) -> None:
    tracing = Tracing(exported.sink, 0.1, trusts_parents=trusts, draw=evenly())
    assert traces(tracing, headers) == 1000 * share
    exported.sink.close(60)


def test_a_ratio_of_one_draws_no_numbers(exported: Exported) -> None:
    def refuse() -> float:
        raise AssertionError("drawn")

    assert traces(Tracing(exported.sink, 1.0, draw=refuse), ()) == 1000
    exported.sink.close(60)


def test_the_span_of_a_call_belongs_to_the_caller_s_trace(exported: Exported) -> None:
    tracing = Tracing(exported.sink, 1.0)
    tracing.address = "server.test", 9000
    span = tracing.begin(METHOD, SAMPLED, 1.0)
    assert span is not None
    assert CURRENT_SPAN.get() is span
    tracing.end_call(span, "OK", "r1")
    found = exported.span()
    assert found.context is not None
    assert found.parent is not None
    assert (found.name, found.kind) == (METHOD, SpanKind.SERVER)
    assert f"{found.context.trace_id:032x}" == f"{found.parent.trace_id:032x}" == TRACE
    assert f"{found.parent.span_id:016x}" == SPAN
    assert found.parent.is_remote
    assert found.context.trace_state.to_header() == "vendor=1"
    assert found.status.status_code is StatusCode.UNSET
    assert found.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": METHOD,
        "rpc.response.status_code": "OK",
        "server.address": "server.test",
        "server.port": 9000,
        "headrace.request_id": "r1",
    }


@pytest.mark.parametrize(
    ("code", "failed"),
    [
        ("OK", False),
        ("INVALID_ARGUMENT", False),
        ("NOT_FOUND", False),
        ("CANCELLED", False),
        ("RESOURCE_EXHAUSTED", False),
        ("DEADLINE_EXCEEDED", True),
        ("INTERNAL", True),
        ("UNAVAILABLE", True),
    ],
)
def test_the_span_of_a_call_failed_if_the_server_did(
    exported: Exported, code: str, failed: bool
) -> None:
    tracing = Tracing(exported.sink, 1.0)
    span = tracing.begin(METHOD, (), 1.0)
    assert span is not None
    tracing.end_call(span, code, "r1")
    found = exported.span()
    assert found.attributes is not None
    assert found.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
    assert found.attributes["rpc.response.status_code"] == code
    assert found.attributes.get("error.type") == (code if failed else None)
    assert found.status.description is None


@pytest.mark.parametrize(
    ("status", "failed"), [(200, False), (404, False), (499, False), (500, True)]
)
def test_an_http_request_is_named_after_its_route(
    exported: Exported, status: int, failed: bool
) -> None:
    tracing = Tracing(exported.sink, 1.0)
    span = tracing.begin("HTTP", (), 1.0)
    assert span is not None
    scope = {"method": "POST", "scheme": "http", "path": "/v2/models/m/infer", "server": ("::1", 9)}
    tracing.end_http(span, scope, "/v2/models/{model}/infer", status, "r1")
    found = exported.span()
    assert found.attributes is not None
    assert found.name == "POST /v2/models/{model}/infer"
    assert found.attributes["http.route"] == "/v2/models/{model}/infer"
    assert found.attributes["http.response.status_code"] == status
    assert found.attributes["url.path"] == "/v2/models/m/infer"
    assert found.attributes["server.port"] == 9
    assert (found.status.status_code is StatusCode.ERROR) is failed


def test_what_a_caller_chooses_is_bounded(exported: Exported) -> None:
    tracing = Tracing(exported.sink, 1.0)
    span = tracing.begin("HTTP", (), 1.0)
    assert span is not None
    scope = {"method": "X" * 10_000, "scheme": "http", "path": "/" + "x" * 10_000}
    tracing.end_http(span, scope, "", 404, "r" * 10_000)
    found = exported.span()
    assert found.attributes is not None
    assert found.name == found.attributes["http.request.method"] == "_OTHER"
    assert len(str(found.attributes["headrace.request_id"])) == 256
    assert "http.route" not in found.attributes
    assert len(str(found.attributes["url.path"])) == 256


LOAD = LoadRequest("m", DeviceName.parse("CPU"), {})


def test_a_load_belongs_to_the_call_that_asks_for_it(exported: Exported) -> None:
    tracing = Tracing(exported.sink, 1.0)
    call = tracing.begin("headrace.v1.InferenceEngine/LoadNetwork", (), 1.0)
    load = tracing.begin_load(LOAD, True)
    assert call is not None
    assert load is not None
    assert (load.trace, load.parent, load.kind) == (call.trace, call.id, "internal")
    assert load.facts["headrace.network"] == "m"
    assert load.facts["headrace.replaces"] is True
    exported.sink.close(60)


def test_a_load_that_no_call_asks_for_is_a_trace_of_its_own(exported: Exported) -> None:
    tracing = Tracing(exported.sink, 1.0)
    load = contextvars.Context().run(tracing.begin_load, LOAD, False)
    assert load is not None
    assert (load.name, load.parent) == ("load m", 0)
    exported.sink.close(60)


def test_a_load_that_an_untraced_call_asks_for_is_not_traced(exported: Exported) -> None:
    tracing = Tracing(exported.sink, 1.0)

    def call() -> Span | None:
        assert tracing.begin(METHOD, UNSAMPLED, 1.0) is None
        return tracing.begin_load(LOAD, False)

    assert contextvars.Context().run(call) is None
    exported.sink.close(60)


def test_the_requests_of_a_stream_are_siblings_with_their_own_status(exported: Exported) -> None:
    spans = RequestSpans(Tracing(exported.sink, 1.0), METHOD, SAMPLED)
    for key in ("a", "b"):
        spans.begin(key)
        assert CURRENT_SPAN.get() is not None
        spans.pause()
        assert CURRENT_SPAN.get() is None
    spans.resume("b")
    assert CURRENT_SPAN.get() is not None
    spans.end("b", "b", "INTERNAL")
    spans.end("a", "a", "OK")
    spans.end("unknown", "unknown", "OK")
    found = exported.spans()
    codes = {each.attributes["headrace.request_id"]: each.status.status_code for each in found}  # type: ignore[index]
    assert codes == {"a": StatusCode.UNSET, "b": StatusCode.ERROR}
    assert {f"{each.parent.span_id:016x}" for each in found if each.parent} == {SPAN}


def test_links_and_times_are_exported(exported: Exported) -> None:
    tracing = Tracing(exported.sink, 1.0)
    first, second = tracing.begin(METHOD, (), 1.0), tracing.begin(METHOD, (), 1.0)
    assert first is not None
    assert second is not None
    batch = first.child("batch", 2.0)
    assert batch is not None
    for each in (first, second):
        each.link(batch)
        batch.link(each)
    batch.finish(2.5, "UNAVAILABLE")
    tracing.end_call(first, "OK", "r1")
    tracing.end_call(second, "OK", "r2")
    found = {span.context.span_id: span for span in exported.spans() if span.context is not None}
    exported_batch, other = found[batch.id], found[second.id]
    assert exported_batch.context is not None
    assert other.context is not None
    assert [link.context.span_id for link in exported_batch.links] == [first.id, second.id]
    assert [link.context.span_id for link in other.links] == [batch.id]
    assert other.links[0].context.trace_id == exported_batch.context.trace_id
    assert exported_batch.end_time is not None
    assert exported_batch.start_time is not None
    assert exported_batch.end_time - exported_batch.start_time == 500_000_000
    assert exported_batch.status.status_code is StatusCode.ERROR
    assert (exported_batch.attributes or {})["error.type"] == "UNAVAILABLE"


class Refusing(SpanExporter):
    """Fails every export."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("the collector is down")

    def shutdown(self) -> None:
        pass


def test_an_exporter_that_raises_disturbs_no_request() -> None:
    sink = OtlpSink(Refusing(), {"service.name": "headrace"})
    tracing = Tracing(sink, 1.0)
    for _ in range(10):
        span = tracing.begin(METHOD, (), 1.0)
        assert span is not None
        tracing.end_call(span, "OK", "r1")
    tracing.close(60)
