"""Networks end to end: loaded, asked about, inferred, exported and unloaded through the wire."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import onnx
import onnxruntime
import pytest

from headrace.testing import networks
from headrace.testing.case import Case
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import decode_values
from headrace.wire.parameters import decode_parameter
from tests.integration.harness import (
    CALL_SECONDS,
    Server,
    Stream,
    assert_settled,
    details_of,
    infer_request,
    outcome_of,
)

MAGIKA = Path(__file__).parents[2] / ".cache/magika/model.onnx"
CASES = (
    networks.add(),
    networks.mlp(),
    networks.image(),
    networks.string_identity(),
    networks.branch(True),
    networks.loop(),
    networks.sequence(),
    networks.local_function(),
)


@contextmanager
def loaded(server: Server, case: Case, device: str, name: str = "", **config: str) -> Iterator[str]:
    """The network for as long as the context lasts."""
    info = server.load(case, device, name, config)
    yield info.name
    server.unload(info.name)


def assert_equal(actual: object, expected: object) -> None:
    if isinstance(expected, list):
        assert isinstance(actual, list)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_equal(one, other)
        return
    assert isinstance(actual, np.ndarray)
    wanted = np.asarray(expected)
    assert actual.shape == wanted.shape
    if wanted.dtype.kind == "f":
        assert actual.dtype == wanted.dtype
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
    else:
        assert actual.tolist() == wanted.tolist()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_are_those_of_the_reference(server: Server, device: str, case: Case) -> None:
    with loaded(server, case, device) as name:
        outputs = server.infer(name, case.inputs)
    expected = case.expected()
    assert outputs.keys() == expected.keys()
    for output, value in expected.items():
        assert_equal(outputs[output], value)


def test_a_real_network_computes_what_onnxruntime_does(server: Server, device: str) -> None:
    """Magika's; the demo shows what it is good for."""
    if not MAGIKA.is_file():
        pytest.skip("magika's network is not here; make test fetches it")
    session = onnxruntime.InferenceSession(MAGIKA, providers=["CPUExecutionProvider"])
    inputs = {"bytes": np.random.default_rng(0).integers(0, 257, (3, 2048), np.int32)}
    (expected,) = session.run(["target_label"], inputs)
    case = Case("magika", onnx.load(MAGIKA), inputs)
    with loaded(server, case, device) as name:
        assert_equal(server.infer(name, inputs)["target_label"], expected)


def test_a_batch_of_any_size_fits_a_dynamic_dimension(server: Server, device: str) -> None:
    case = networks.mlp()
    with loaded(server, case, device) as name:
        for rows in (1, 7):
            inputs = {"x": networks.random(rows, 8, seed=rows)}
            outputs = server.infer(name, inputs)
            assert_equal(outputs["scores"], case.expected(inputs)["scores"])


def test_only_the_outputs_asked_for_come_back(server: Server, device: str) -> None:
    case = networks.mlp()
    with loaded(server, case, device) as name:
        assert list(server.infer(name, case.inputs, outputs=["label"])) == ["label"]


def test_a_loaded_network_says_what_it_is(server: Server, device: str) -> None:
    case = networks.mlp()
    with loaded(server, case, device, "described") as name:
        assert name in server.networks()
        reply = server.stub.GetNetwork(pb.GetNetworkRequest(name=name), timeout=CALL_SECONDS)
    info = reply.info
    assert (info.name, info.device, info.state) == ("described", device, pb.READY)
    assert [port.name for port in info.inputs] == ["x"]
    assert [(each.size, each.symbol) for each in info.inputs[0].shape] == [(-1, "N"), (8, "")]
    assert {port.name: port.dtype for port in info.outputs} == {
        "scores": pb.FLOAT,
        "label": pb.INT64,
    }
    assert info.config["PERF_COUNT"]
    assert info.origin == "client"
    assert reply.layers
    assert name not in server.networks()


def test_a_query_names_the_device_of_every_layer(server: Server, device: str) -> None:
    case = networks.mlp()
    request = pb.QueryNetworkRequest(
        model=pb.ModelSource(data=case.model.SerializeToString()),
        device=device,
        config={"NO_SUCH_KEY": "ignored"},
    )
    reply = server.stub.QueryNetwork(request, timeout=CALL_SECONDS)
    assert dict(reply.supported_layers) == {node.name: device for node in case.model.graph.node}
    assert not reply.unsupported


def test_a_query_lists_every_unsupported_layer_and_a_load_refuses_them(
    server: Server, device: str
) -> None:
    case = networks.unknown_operators()
    request = pb.QueryNetworkRequest(
        model=pb.ModelSource(data=case.model.SerializeToString()), device=device
    )
    reply = server.stub.QueryNetwork(request, timeout=CALL_SECONDS)
    unsupported = {each.layer: each.reason for each in reply.unsupported}
    # A device may not know the last one's types, which come from layers that nobody knows.
    assert {"strange", "stranger"} <= set(unsupported) <= {"strange", "stranger", "last"}
    assert all(unsupported.values())
    assert "first" in reply.supported_layers
    with pytest.raises(grpc.RpcError) as caught:
        server.load(case, device)
    details = details_of(caught.value)
    assert details.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "strange" in details.message
    assert "stranger" in details.message


def test_replace_switches_to_a_new_generation(server: Server, device: str) -> None:
    case = networks.add()
    first = server.load(case, device, "replaced")
    request = pb.LoadNetworkRequest(
        name="replaced",
        model=pb.ModelSource(data=networks.relu_relu().model.SerializeToString()),
        device=device,
        replace=True,
    )
    second = server.stub.LoadNetwork(request, timeout=CALL_SECONDS)
    assert second.generation > first.generation
    outputs = server.infer("replaced", networks.relu_relu().inputs)
    assert_equal(outputs["z"], networks.relu_relu().expected()["z"])
    server.unload("replaced")


def test_an_uploaded_model_is_loaded_by_its_digest(server: Server, device: str) -> None:
    case = networks.add()
    data = case.model.SerializeToString()
    chunks = (pb.UploadModelRequest(chunk=data[at : at + 16]) for at in range(0, len(data), 16))
    uploaded = server.stub.UploadModel(chunks, timeout=CALL_SECONDS)
    assert uploaded.size_bytes == len(data)
    request = pb.LoadNetworkRequest(
        name="uploaded", model=pb.ModelSource(digest=uploaded.digest), device=device
    )
    server.stub.LoadNetwork(request, timeout=CALL_SECONDS)
    assert_equal(server.infer("uploaded", case.inputs)["z"], case.expected()["z"])
    server.unload("uploaded")


def test_an_exported_network_is_the_same_once_imported(server: Server, device: str) -> None:
    case = networks.image()
    with loaded(server, case, device, "exported") as name:
        blob = server.export(name)
        info = server.import_blob(blob, "imported")
        assert (info.device, info.origin) == (device, "import")
        outputs = server.infer("imported", case.inputs)
        assert_equal(outputs["scores"], case.expected()["scores"])
        server.unload("imported")


def test_performance_counts_name_the_original_layers(server: Server, device: str) -> None:
    case = networks.mlp()
    with loaded(server, case, device) as name:
        request = infer_request(name, case.inputs, performance_counts=True)
        reply = server.stub.Infer(request, timeout=CALL_SECONDS)
    names = {node.name for node in case.model.graph.node}
    profiled = {origin for each in reply.performance_counts for origin in each.original_layers}
    assert profiled
    assert profiled <= names
    assert all(each.seconds >= 0 for each in reply.performance_counts)


def test_200_requests_of_one_stream_are_answered_once_each(server: Server, device: str) -> None:
    case = networks.fragile()
    with loaded(server, case, device) as name:
        stream = Stream(server.stub)
        wanted = {}
        for number in range(200):
            at = number % 6  # 5 is out of bounds, known at the run only
            inputs = {"x": case.inputs["x"], "at": np.array([at], np.int64)}
            wanted[f"r{number}"] = at
            stream.send(infer_request(name, inputs, id=f"r{number}"))
        stream.done()
        results = list(stream.results)
    assert sorted(each.id for each in results) == sorted(wanted)
    for each in results:
        at = wanted[each.id]
        if at == 5:
            assert outcome_of(each) != "OK"
        else:
            outputs = decode_values(each.reply.outputs, each.reply.attachments)
            assert_equal(outputs["y"], np.asarray(case.inputs["x"])[[at]])


def test_a_stream_cancels_by_id_and_refuses_an_id_in_flight(server: Server, device: str) -> None:
    case = networks.endless()
    with loaded(server, case, device) as name:
        stream = Stream(server.stub)
        stream.send(infer_request(name, case.inputs, id="same"))
        stream.send(infer_request(name, case.inputs, id="same"))
        refused = stream.next()
        assert details_of(refused.error).field == "id"
        assert "in flight" in refused.error.message
        stream.send(cancel=["same", "never sent"])
        assert outcome_of(stream.next()) == "CANCELLED"
        stream.done()
        assert list(stream.results) == []
    assert_settled(server)


def test_a_deadline_ends_a_request_that_runs(server: Server, device: str) -> None:
    case = networks.endless()
    with loaded(server, case, device) as name:
        stream = Stream(server.stub)
        stream.send(infer_request(name, case.inputs, id="late", timeout_seconds=0.05))
        assert outcome_of(stream.next()) == "DEADLINE_EXCEEDED"
        stream.done()
        assert list(stream.results) == []
    assert_settled(server)


def test_configuration_and_metrics_are_typed(server: Server, device: str) -> None:
    target = pb.Target(device=device)

    def metric(name: str, target: pb.Target = target) -> object:
        request = pb.GetMetricRequest(target=target, name=name)
        return decode_parameter(server.stub.GetMetric(request, timeout=CALL_SECONDS).value)

    def config(name: str, target: pb.Target = target) -> object:
        request = pb.GetConfigRequest(target=target, name=name)
        return decode_parameter(server.stub.GetConfig(request, timeout=CALL_SECONDS).value)

    for name in metric("SUPPORTED_METRICS"):  # type: ignore[attr-defined]
        assert metric(name) is not None
    for name in metric("SUPPORTED_CONFIG_KEYS"):  # type: ignore[attr-defined]
        assert config(name) is not None
    before = config("EXECUTION_TIMEOUT")
    request = pb.SetConfigRequest(target=target, config={"EXECUTION_TIMEOUT": "12.5"})
    server.stub.SetConfig(request, timeout=CALL_SECONDS)
    assert config("EXECUTION_TIMEOUT") == 12.5
    with loaded(server, networks.add(), device, "typed") as name:
        network = pb.Target(network=name)
        assert config("EXECUTION_TIMEOUT", network) == 12.5
        assert metric("NETWORK_NAME", network) == name
        request = pb.SetConfigRequest(target=network, config={"EXECUTION_TIMEOUT": "3"})
        server.stub.SetConfig(request, timeout=CALL_SECONDS)
        assert config("EXECUTION_TIMEOUT", network) == 3
    request = pb.SetConfigRequest(target=target, config={"EXECUTION_TIMEOUT": str(before)})
    server.stub.SetConfig(request, timeout=CALL_SECONDS)
    assert config("EXECUTION_TIMEOUT") == before


def test_a_scrape_has_every_metric(server: Server, device: str) -> None:
    case = networks.add()
    with loaded(server, case, device, "scraped") as name:
        server.infer(name, case.inputs)
        samples = {sample for sample, _ in server.scrape()}
        assert server.total("headrace_network_requests_total", network=name) == 1
        assert server.total("headrace_network_request_seconds_count", network=name) == 1
    assert samples >= {
        "headrace_device_requests_total",
        "headrace_device_queue_depth",
        "headrace_device_queue_capacity",
        "headrace_device_queue_wait_seconds_bucket",
        "headrace_device_execution_seconds_bucket",
        "headrace_device_streams",
        "headrace_device_streams_busy",
        "headrace_device_memory_bytes",
        "headrace_device_up",
        "headrace_network_requests_total",
        "headrace_network_request_seconds_bucket",
        "headrace_network_load_seconds_bucket",
        "headrace_network_batch_size_bucket",
        "headrace_grpc_requests_total",
        "headrace_build_info",
        "process_resident_memory_bytes",
    }
    left = {dict(labels).get("network") for _, labels in server.scrape()}
    assert name not in left, "a removed network's series go with it"


def test_a_device_says_what_memory_its_networks_hold(server: Server, device: str) -> None:
    case, place = networks.image(), f"{device}.0"
    before = server.total("headrace_device_memory_bytes", device=place)
    with loaded(server, case, device, "first"), loaded(server, case, device, "second"):
        held = server.total("headrace_device_memory_bytes", device=place) - before
        assert held == 2 * case.network.weight_bytes > 0
    assert server.total("headrace_device_memory_bytes", device=place) == before


def test_series_of_a_device_join_on_its_label(server: Server, device: str) -> None:
    with loaded(server, networks.add(), device, "joined"):
        labels = {
            name: {dict(found)["device"] for sample, found in server.scrape() if sample == name}
            for name in (
                "headrace_device_up",
                "headrace_device_queue_depth",
                "headrace_device_queue_capacity",
                "headrace_device_streams",
                "headrace_device_memory_bytes",
                "headrace_device_accepted_total",
                "headrace_network_accepted_total",
            )
        }
        assert all(f"{device}.0" in found for found in labels.values()), labels
        for name, found in labels.items():
            assert found <= labels["headrace_device_up"], name
        info = server.stub.GetNetwork(pb.GetNetworkRequest(name="joined"), timeout=CALL_SECONDS)
        assert info.info.device == device, "as the client called it"


def test_promtool_finds_nothing_wrong_with_the_metrics(server: Server) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        assert os.environ.get("CI") != "true", "promtool is required there"
        pytest.skip("promtool (Debian's package prometheus) is not installed")
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=server.get("/metrics"),
        capture_output=True,
        text=True,
        timeout=CALL_SECONDS,
        check=False,
    )
    complaints = re.findall(r"^headrace_.*", checked.stdout + checked.stderr, re.MULTILINE)
    assert complaints == []
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_http_port_answers_probes(server: Server) -> None:
    assert server.get("/healthz")
    assert server.get("/readyz")
