"""Traces over real sockets: a server exports to a collector, as spans of its callers' traces."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from headrace.client import Client
from headrace.oip import open_inference_pb2 as oip
from headrace.testing import networks
from headrace.testing.case import parse
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import CALL_SECONDS, Server, Stream, infer_request, until
from tests.support.collector import AT_ONCE, Collector, Received, collector_over_grpc
from tests.support.manual import blocks
from tests.support.ports import held_port
from tests.support.tokens import entry

ENDLESS, ADD, FRAGILE = networks.endless(), networks.add(), networks.fragile()
SERVICE = "headrace.v1.InferenceEngine"
SERVER, CLIENT = 2, 3  # kinds of OTLP
ERROR = 2  # a status of OTLP
CONFIG = (
    '[plugins.ISOLATED]\ndevice = "TEMPLATE"\n[plugins.ISOLATED.config]\nISOLATION = "PROCESS"\n'
)


def chain() -> onnx.ModelProto:
    """A network of rows that HETERO cuts in two by affinity."""
    text = "chain (float[N,4] x) => (float[N,4] y) { [front] a = Relu(x) [back] y = Abs(a) }"
    return parse(text)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collector_over_grpc() as running:
        yield running


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A traced server with the networks of the tests."""
    config = tmp_path_factory.mktemp("traced") / "headrace.toml"
    config.write_text(CONFIG)
    devices = "CPU,TEMPLATE,HETERO,BATCH,MULTI,ISOLATED"
    options = ("--config", str(config), "--devices", devices, "--otlp-endpoint", collector.url)
    logged = ("--log-level", "debug", "--log-format", "json")
    with Server(*options, *logged, environment=AT_ONCE) as running:
        for case in (ENDLESS, ADD, FRAGILE):
            running.load(case, "CPU", case.name)
        running.load(ADD, "ISOLATED", "isolated")
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


class Caller:
    """A program with a tracer provider, whose spans go to the same collector."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
        self.tracer = provider.get_tracer("test")


def nest(spans: list[Received], outside: set[str]) -> None:
    """Asserts that the spans are one connected trace whose times nest.

    Args:
        outside: the ids of the caller's own spans, which the collector does not get.
    """
    by_id = {span.id: span for span in spans}
    assert len(by_id) == len(spans)
    assert len({span.trace for span in spans}) == 1
    for span in spans:
        assert span.start <= span.end, span
        if span.parent in outside or not span.parent:
            assert span.kind == SERVER, span
            continue
        parent = by_id[span.parent]
        assert parent.start <= span.start <= span.end <= parent.end, (parent, span)
        assert set(span.links) <= set(by_id), span


def names_below(spans: list[Received], parent: str) -> list[str]:
    children = sorted((span for span in spans if span.parent == parent), key=lambda s: s.start)
    return [span.name for span in children]


def test_a_call_over_hetero_with_batches_below_is_one_connected_trace(
    server: Server, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(monkeypatch)
    with Client(server.address) as client:
        network = client.load_network(
            chain(),
            device="HETERO:[BATCH:CPU(8)],TEMPLATE",
            affinities={"front": "BATCH:CPU(8)", "back": "TEMPLATE"},
            name="chain",
        )
        with caller.tracer.start_as_current_span("program") as program:
            network.infer({"x": np.ones((2, 4), np.float32)})
        network.unload()
    trace_id = f"{program.get_span_context().trace_id:032x}"

    def whole(spans: Sequence[Received]) -> bool:
        return any(span.trace == trace_id and span.kind == SERVER for span in spans)

    spans = [span for span in collector.until(whole) if span.trace == trace_id]
    (call,) = (span for span in spans if span.kind == SERVER)
    nest(spans, outside={call.parent})  # the parent is the span of the client library
    assert call.parent != f"{program.get_span_context().span_id:016x}"
    assert call.name == f"{SERVICE}/Infer"
    assert call.facts["headrace.network"] == "chain"
    assert call.facts["headrace.outcome"] == "completed"
    assert call.facts["rpc.response.status_code"] == "OK"
    front, back = (span for span in spans if span.parent == call.id)
    assert (front.facts["headrace.subgraph"], back.facts["headrace.subgraph"]) == (1, 2)
    assert front.end <= back.start
    assert names_below(spans, front.id) == ["queue BATCH", "batch CPU.0"]
    (batch,) = (span for span in spans if span.name == "batch CPU.0")
    assert (batch.links, front.links) == ((front.id,), (batch.id,))
    assert batch.facts["headrace.batch_size"] == 2
    assert names_below(spans, batch.id) == ["queue CPU.0", "execute CPU.0"]
    assert names_below(spans, back.id) == ["queue TEMPLATE.0", "execute TEMPLATE.0"]


def test_a_load_has_its_stages(server: Server, collector: Collector) -> None:
    server.load(networks.mlp(), "CPU", "staged")  # no test has it read before
    server.unload("staged")
    spans = collector.trace_with(headrace__network="staged")
    call = next(span for span in spans if span.kind == SERVER)
    (load,) = (span for span in spans if span.parent == call.id)
    assert load.name == "load staged"
    stages = names_below(spans, load.id)
    assert stages == ["read", "check", "check", "compile", "transform", "check", "publish"]
    nest(spans, outside={""})


def test_a_failed_load_says_so(server: Server, collector: Collector) -> None:
    with pytest.raises(grpc.RpcError):
        server.load(networks.unknown_operators(), "CPU", "unloadable")
    spans = collector.trace_with(headrace__network="unloadable")
    (stage,) = (span for span in spans if span.name == "compile")
    assert stage.facts["error.type"] == "FAILED_PRECONDITION"
    (call,) = (span for span in spans if span.kind == SERVER)
    assert call.facts["rpc.response.status_code"] == "FAILED_PRECONDITION"
    assert call.status != ERROR  # the caller's fault


def headers(number: int) -> tuple[tuple[str, str], ...]:
    return (("traceparent", f"00-{number:032x}-{number:016x}-01"),)


def call(server: Server, network: str, inputs: Any, number: int, **options: Any) -> Any:
    """A unary call in a trace of this number."""
    timeout = options.pop("timeout", CALL_SECONDS)
    request = infer_request(network, inputs, id=f"call-{number}", **options)
    return server.stub.Infer.future(request, timeout=timeout, metadata=headers(number))


def trace_of(collector: Collector, number: int) -> list[Received]:
    found = collector.trace_with(headrace__request_id=f"call-{number}")
    assert {span.trace for span in found} == {f"{number:032x}"}
    return found


def test_a_request_that_fails_has_the_status_of_its_error(
    server: Server, collector: Collector
) -> None:
    bad = {**FRAGILE.inputs, "at": np.array([987654], np.int64)}
    failed = call(server, FRAGILE.name, bad, 101).exception(CALL_SECONDS)
    spans = trace_of(collector, 101)
    (request,) = (span for span in spans if span.kind == SERVER)
    (execution,) = (span for span in spans if span.name == "execute CPU.0")
    assert request.facts["rpc.response.status_code"] == failed.code().name
    assert request.facts["headrace.outcome"] == "failed"
    assert execution.facts["error.type"] == failed.code().name
    assert "987654" not in repr(spans)  # spans hold no values


def test_a_cancelled_request_says_so(server: Server, collector: Collector) -> None:
    pending = call(server, ENDLESS.name, ENDLESS.inputs, 102)
    until(lambda: server.metric("NUMBER_OF_EXEC_INFER_REQUESTS", "CPU"), "the request was to run")
    pending.cancel()
    spans = trace_of(collector, 102)
    (request,) = (span for span in spans if span.kind == SERVER)
    assert request.facts["rpc.response.status_code"] == "CANCELLED"
    assert request.status != ERROR


def test_an_expired_request_says_so(server: Server, collector: Collector) -> None:
    late = call(server, ENDLESS.name, ENDLESS.inputs, 103, timeout_seconds=0.05)
    assert late.exception(CALL_SECONDS).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    spans = trace_of(collector, 103)
    (request,) = (span for span in spans if span.kind == SERVER)
    assert request.facts["rpc.response.status_code"] == "DEADLINE_EXCEEDED"
    assert request.facts["headrace.outcome"] == "expired"
    assert request.status == ERROR
    assert request.facts["error.type"] == "DEADLINE_EXCEEDED"


def test_callers_at_the_same_time_do_not_mix_their_contexts(
    server: Server, collector: Collector
) -> None:
    numbers = range(1000, 1032)
    together = threading.Barrier(len(numbers))

    def ask(number: int) -> None:
        together.wait(CALL_SECONDS)
        call(server, ADD.name, ADD.inputs, number).result(CALL_SECONDS)

    with ThreadPoolExecutor(len(numbers)) as callers:
        list(callers.map(ask, numbers))
    for number in numbers:
        spans = trace_of(collector, number)
        nest(spans, outside={f"{number:016x}"})
        (request,) = (span for span in spans if span.kind == SERVER)
        assert request.parent == f"{number:016x}"
        assert names_below(spans, request.id) == ["queue CPU.0", "execute CPU.0"]


def test_each_request_of_a_stream_is_a_span_of_its_own(
    server: Server, collector: Collector
) -> None:
    outgoing = [
        infer_request(ADD.name, ADD.inputs, id="call-201"),
        infer_request("nobody", ADD.inputs, id="stream-2"),
    ]
    message = pb.InferStreamRequest(requests=outgoing)
    calling = server.stub.InferStream(iter([message]), timeout=CALL_SECONDS, metadata=headers(201))
    assert sum(len(reply.results) for reply in calling) == 2
    spans = trace_of(collector, 201)
    until(lambda: any(s.facts.get("headrace.request_id") == "stream-2" for s in collector.spans))
    spans = [span for span in collector.spans if span.trace == f"{201:032x}"]
    requests = {s.facts["headrace.request_id"]: s for s in spans if s.kind == SERVER}
    assert {each.name for each in requests.values()} == {f"{SERVICE}/InferStream"}
    assert {each.parent for each in requests.values()} == {f"{201:016x}"}
    codes = {key: each.facts["rpc.response.status_code"] for key, each in requests.items()}
    assert codes == {"call-201": "OK", "stream-2": "NOT_FOUND"}


def test_the_open_inference_protocol_is_traced_over_grpc_and_rest(
    server: Server, collector: Collector
) -> None:
    inputs = [
        oip.ModelInferRequest.InferInputTensor(
            name=name,
            datatype="FP32",
            shape=array.shape,
            contents=oip.InferTensorContents(fp32_contents=array.ravel().tolist()),
        )
        for name, array in ADD.inputs.items()
        if isinstance(array, np.ndarray)
    ]
    asked = oip.ModelInferRequest(model_name=ADD.name, id="call-301", inputs=inputs)
    unary = server.channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=oip.ModelInferRequest.SerializeToString,
        response_deserializer=oip.ModelInferResponse.FromString,
    )
    unary(asked, timeout=CALL_SECONDS, metadata=headers(301))
    (request,) = (span for span in trace_of(collector, 301) if span.kind == SERVER)
    assert request.name == "inference.GRPCInferenceService/ModelInfer"
    assert request.facts["headrace.network"] == ADD.name

    stream = server.channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=oip.ModelInferRequest.SerializeToString,
        response_deserializer=oip.ModelStreamInferResponse.FromString,
    )
    asked.id = "call-302"
    replies = list(stream(iter([asked]), timeout=CALL_SECONDS, metadata=headers(302)))
    assert [reply.error_message for reply in replies] == [""]
    spans = trace_of(collector, 302)
    (request,) = (span for span in spans if span.kind == SERVER)
    assert request.name == "inference.GRPCInferenceService/ModelStreamInfer"
    assert names_below(spans, request.id) == ["queue CPU.0", "execute CPU.0"]

    body = {
        "inputs": [
            {"name": each.name, "datatype": "FP32", "shape": list(each.shape)}
            | {"data": list(each.contents.fp32_contents)}
            for each in inputs
        ]
    }
    sent = urllib.request.Request(
        f"http://{server.http}/v2/models/{ADD.name}/infer",
        json.dumps(body).encode(),
        {**dict(headers(303)), "x-request-id": "call-303"},
    )
    with urllib.request.urlopen(sent, timeout=CALL_SECONDS) as reply:
        assert reply.status == 200
    spans = trace_of(collector, 303)
    (request,) = (span for span in spans if span.kind == SERVER)
    assert request.name == "POST /v2/models/{model}/infer"
    assert request.parent == f"{303:016x}"
    assert names_below(spans, request.id) == ["queue CPU.0", "execute CPU.0"]


def test_a_run_in_a_worker_process_is_a_span_of_the_server(
    server: Server, collector: Collector
) -> None:
    call(server, "isolated", ADD.inputs, 401).result(CALL_SECONDS)
    spans = trace_of(collector, 401)
    nest(spans, outside={f"{401:016x}"})
    (execution,) = (span for span in spans if span.name.startswith("execute"))
    assert execution.facts["headrace.process"] == "worker"
    assert execution.facts["headrace.inference_seconds"] > 0


def test_the_program_of_the_manual_makes_one_trace_with_the_server(
    server: Server, collector: Collector, tmp_path: Path
) -> None:
    (program,) = blocks("docs/run/tracing.md", "python")
    for shown, here in (
        ("http://localhost:4317", collector.url),
        ("localhost:9000", server.address),
    ):
        assert shown in program
        program = program.replace(shown, here)
    onnx.save(
        parse("m (float[1,16] x) => (float[1,16] y) { y = Softmax(x) }"), tmp_path / "model.onnx"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    identifier = ran.stdout.split()[-1]

    def whole(spans: Sequence[Received]) -> bool:
        return {SERVER, CLIENT} <= {span.kind for span in spans if span.trace == identifier}

    spans = [span for span in collector.until(whole) if span.trace == identifier]
    (root,) = (span for span in spans if not span.parent)
    assert root.name == "my work"
    (asked,) = (span for span in spans if span.parent == root.id)
    (answered,) = (span for span in spans if span.parent == asked.id)
    assert (asked.kind, answered.kind) == (CLIENT, SERVER)
    assert asked.name == answered.name == f"{SERVICE}/Infer"
    assert asked.start <= answered.start <= answered.end <= asked.end
    assert names_below(spans, answered.id) == ["queue CPU.0", "execute CPU.0"]


def test_probes_and_scrapes_are_not_traced_and_a_scrape_shows_traced_requests(
    server: Server, collector: Collector
) -> None:
    call(server, ADD.name, ADD.inputs, 501).result(CALL_SECONDS)
    trace_of(collector, 501)
    accepted = {"accept": "application/openmetrics-text; version=1.0.0", **dict(headers(502))}
    asked = urllib.request.Request(f"http://{server.http}/metrics", headers=accepted)
    with urllib.request.urlopen(asked, timeout=CALL_SECONDS) as reply:
        families = list(
            text_string_to_metric_families(reply.read().decode())  # type: ignore[no-untyped-call]
        )
    traces = {
        sample.exemplar.labels["trace_id"]
        for family in families
        if family.name == "headrace_network_request_seconds"
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert traces <= {span.trace for span in collector.spans}
    assert f"{501:032x}" in traces
    call(server, ADD.name, ADD.inputs, 503).result(CALL_SECONDS)
    trace_of(collector, 503)  # by now a trace of the scrape would have come, too
    assert f"{502:032x}" not in {span.trace for span in collector.spans}


def test_lines_of_the_log_name_the_trace_of_their_request(
    server: Server, collector: Collector
) -> None:
    call(server, ADD.name, ADD.inputs, 601).result(CALL_SECONDS)
    (request,) = (span for span in trace_of(collector, 601) if span.kind == SERVER)
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    (line,) = (each for each in lines if each.get("request_id") == "call-601")
    assert (line["trace_id"], line["span_id"]) == (request.trace, request.id)


def test_nobody_without_a_credential_causes_spans(collector: Collector, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(entry("one", "secret-token", "manage"))
    options = ("--devices", "TEMPLATE", "--tokens", str(tokens), "--otlp-endpoint", collector.url)
    hostile = (*headers(701), ("tracestate", "x" * 5000))
    with Server(*options, environment=AT_ONCE) as guarded:
        for credential in (None, "wrong"):
            sent = () if credential is None else (("authorization", f"Bearer {credential}"),)
            with pytest.raises(grpc.RpcError):
                guarded.stub.ListNetworks(pb.ListNetworksRequest(), metadata=(*hostile, *sent))
            request = urllib.request.Request(
                f"http://{guarded.http}/v2", headers={**dict(headers(701)), **dict(sent)}
            )
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(request, timeout=CALL_SECONDS)
        allowed = (*headers(702), ("authorization", "Bearer secret-token"))
        named = ("x-request-id", "call-702")
        guarded.stub.ListNetworks(pb.ListNetworksRequest(), metadata=(*allowed, named))
        spans = collector.trace_with(headrace__request_id="call-702")
        assert [span.name for span in spans] == [f"{SERVICE}/ListNetworks"]
        assert "secret-token" not in repr(spans)
        assert guarded.stop() == 0, guarded.log()
        assert "W3C" not in guarded.log().upper()
    assert f"{701:032x}" not in {span.trace for span in collector.spans}


def test_a_server_whose_collector_is_dead_serves_and_stops_within_its_grace_period() -> None:
    options = ("--devices", "TEMPLATE", "--otlp-endpoint", f"http://127.0.0.1:{held_port()}")
    with Server(*options, "--grace-seconds", "1", environment=AT_ONCE) as alone:
        alone.load(ADD, "TEMPLATE", ADD.name)
        stream = Stream(alone.stub)
        stream.send(*(infer_request(ADD.name, ADD.inputs, id=str(n)) for n in range(64)))
        stream.done()
        assert len(list(stream.results)) == 64
        assert alone.stop() == 0, alone.log()
        assert "Traceback" not in alone.log(), alone.log()
