"""A collector of traces: OTLP over gRPC or HTTP on a free port, which keeps what it gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc

from tests.support.patience import PATIENCE_SECONDS

AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
"""Variables of a server that exports its spans soon."""


@dataclass(frozen=True)
class Received:
    """A span as the collector got it."""

    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    facts: dict[str, Any]
    links: tuple[str, ...]
    status: int
    kind: int
    state: str


class Collector:
    """Thread-safe: `_changed` guards the spans."""

    def __init__(self) -> None:
        self.url = ""
        self.resource: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._spans: list[Received] = []

    @property
    def spans(self) -> list[Received]:
        with self._changed:
            return list(self._spans)

    def take(self, request: pb.ExportTraceServiceRequest) -> None:
        with self._changed:
            for each in request.resource_spans:
                self.resource = _facts(each.resource.attributes)
                for scope in each.scope_spans:
                    self._spans.extend(map(_received, scope.spans))
            self._changed.notify_all()

    def until(self, condition: Callable[[Sequence[Received]], object]) -> list[Received]:
        """The spans, when the condition holds for them."""
        with self._changed:
            found = self._changed.wait_for(lambda: condition(self._spans), PATIENCE_SECONDS)
            assert found, f"the spans did not come; there are {[s.name for s in self._spans]}"
            return list(self._spans)

    def trace_with(self, **facts: Any) -> list[Received]:
        """The spans of the trace whose request has these attributes, when it has come. The span of
        a request comes last."""
        names = {name.replace("__", "."): value for name, value in facts.items()}

        def wanted(span: Received) -> bool:
            return names.items() <= span.facts.items()

        spans = self.until(lambda spans: any(map(wanted, spans)))
        (trace,) = {span.trace for span in spans if wanted(span)}
        return [span for span in spans if span.trace == trace]


@contextmanager
def collector_over_grpc() -> Iterator[Collector]:
    collector = Collector()

    class Service(rpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            collector.take(request)
            return pb.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    rpc.add_TraceServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


@contextmanager
def collector_over_http() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            data = self.rfile.read(int(self.headers["content-length"]))
            collector.take(pb.ExportTraceServiceRequest.FromString(data))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _received(span: Any) -> Received:
    return Received(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _facts(span.attributes),
        tuple(link.span_id.hex() for link in span.links),
        span.status.code,
        span.kind,
        span.trace_state,
    )


def _facts(attributes: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
        for each in attributes
    }
