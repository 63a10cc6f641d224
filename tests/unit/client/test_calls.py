"""What both clients send and return, method by method."""

from __future__ import annotations

import inspect
import math
import socketserver
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest

from headrace.client import Client, Network, Range, RepositoryVersion, aio, errors, replies
from headrace.client.channel.channel import CallFailed
from headrace.client.channel.connecting.names import parse
from headrace.client.model import CHUNK_BYTES, INLINE_BYTES
from headrace.client.transport import METHODS
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import ErrorDetails
from tests.support.client_fake import KINDS, Fake, connected, running

X = np.array([[1, 2], [3, 4]], np.float32)


def refused(code: grpc.StatusCode, **details: Any) -> ErrorDetails:
    return ErrorDetails(code, "no", **details)


# ---- versions ----


def test_a_network_that_is_looked_up_with_a_version_asks_for_it_everywhere(
    client: Any, fake: Fake
) -> None:
    network = client.network("echo", version="2")
    assert (network.pinned, network.version) == ("2", "1")  # the server's answer is fixed here
    network.infer({"x": X})
    network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    network.set_config({"PERF_COUNT": True})
    network.layers()
    network.export()
    network.unload()
    assert [request.version for request in fake.requests("GetNetwork")] == ["2", "2"]
    assert fake.requests("Infer")[0].version == "2"
    assert fake.requests("GetMetric")[0].target.version == "2"
    assert fake.requests("SetConfig")[0].target == pb.Target(network="echo", version="2")
    assert fake.requests("ExportNetwork")[0].version == "2"
    assert fake.requests("UnloadNetwork")[0] == pb.UnloadNetworkRequest(name="echo", version="2")


def test_a_network_without_a_version_asks_for_none(client: Any, fake: Fake) -> None:
    network = client.network("echo")
    network.infer({"x": X})
    network.unload()
    assert fake.requests("Infer")[0].version == ""
    assert fake.requests("UnloadNetwork")[0] == pb.UnloadNetworkRequest(name="echo")


def test_traffic_is_shares_by_version(client: Any, fake: Fake) -> None:
    network = client.network("echo")
    network.set_traffic({"1": 90, "2": 10})
    network.set_traffic({})
    shared, back = fake.requests("SetTraffic")
    assert (shared.network, dict(shared.shares)) == ("echo", {"1": 90, "2": 10})
    assert back == pb.SetTrafficRequest(network="echo")


@pytest.mark.parametrize("wrong", [{"1": 0.5}, {"1": "10"}, {"1": 2**31}])
def test_a_share_is_a_whole_number(client: Any, fake: Fake, wrong: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="whole numbers"):
        client.network("echo").set_traffic(wrong)
    assert not fake.requests("SetTraffic")


def test_a_shadow_is_a_version_or_a_device_and_a_share(client: Any, fake: Fake) -> None:
    client.set_shadow("echo", 3)
    client.set_shadow("echo", device="OPENVINO", percent=50)
    client.set_shadow("echo", percent=0)
    assert fake.requests("SetShadow") == [
        pb.SetShadowRequest(network="echo", version="3", percent=5),
        pb.SetShadowRequest(network="echo", device="OPENVINO", percent=50),
        pb.SetShadowRequest(network="echo"),
    ]
    with pytest.raises(errors.InvalidArgument, match="whole number"):
        client.set_shadow("echo", 3, percent=0.5)


def test_the_repository_is_a_list_of_versions(client: Any) -> None:
    first, second, failed, faulty = client.repository()
    assert first == RepositoryVersion("echo", "1", "READY", "", 90, 3 << 20, 4.0)
    assert (second.share, second.reason) == (10, "bad model")
    assert (failed.state, failed.version) == ("FAILED", "7")
    assert (faulty.state, faulty.version, faulty.reason) == ("", "", "leads out")


# ---- loading ----


def test_everything_about_a_load_is_sent(client: Any, fake: Fake) -> None:
    client.load_network(
        b"model",
        device="HETERO:OPENCL,CPU",
        config={"PERF_COUNT": True, "NUM_STREAMS": 2, "HINT": "LATENCY"},
        name="m",
        preprocessing={"x": {"dtype": "uint8", "layout": "NHWC", "mean": 0.5, "scale": [1, 2]}},
        postprocessing={"y": {"dtype": np.float16}},
        affinities={"Relu_0": "CPU"},
        replace=True,
    )
    (request,) = fake.requests("LoadNetwork")
    assert request == pb.LoadNetworkRequest(
        name="m",
        model=pb.ModelSource(data=b"model"),
        device="HETERO:OPENCL,CPU",
        config={"PERF_COUNT": "YES", "NUM_STREAMS": "2", "HINT": "LATENCY"},
        inputs={
            "x": pb.InputOptions(dtype=pb.DataType.UINT8, layout="NHWC", mean=[0.5], scale=[1, 2])
        },
        outputs={"y": pb.OutputOptions(dtype=pb.DataType.FLOAT16)},
        affinities={"Relu_0": "CPU"},
        replace=True,
    )


def test_a_loaded_network_knows_its_ports_and_configuration(client: Any) -> None:
    network = client.load_network(b"model", device="CPU", name="m")
    assert network.name == "m"
    assert network.device == "CPU"
    assert network.inputs["x"] is network.inputs[0]
    assert network.inputs[0].dtype == "float32"
    assert network.inputs[0].shape == ("batch", None)
    assert network.outputs.names == ("y", "z")
    assert network.outputs["y"].shape is None
    assert network.config == {"NUM_STREAMS": "2"}
    assert network.notes == ("fp16 to fp32",)
    assert network.info.state == "READY"
    assert network.info.execution_devices == ("CPU",)
    with pytest.raises(KeyError):
        network.inputs["other"]


def test_a_file_gives_the_network_its_name(client: Any, fake: Fake, tmp_path: Path) -> None:
    path = tmp_path / "my model (v1.2).onnx"
    path.write_bytes(b"model")
    assert client.load_network(path).name == "my-model-v1.2-"
    assert client.load_network(str(path), name="n").name == "n"
    assert fake.requests("LoadNetwork")[0].model.data == b"model"


def test_anything_that_serialises_is_a_model(client: Any, fake: Fake) -> None:
    client.load_network(pb.UploadModelRequest(chunk=b"abc"), name="m")
    assert fake.requests("LoadNetwork")[0].model.data == b"\x0a\x03abc"


def test_the_repository_chooses_the_device_unless_told(client: Any, fake: Fake) -> None:
    client.load_network(repository="resnet")
    client.load_network(b"model", name="m")
    first, second = fake.requests("LoadNetwork")
    assert first.model.repository == "resnet"
    assert first.device == ""
    assert second.device == "CPU"


@pytest.mark.parametrize(
    ("method", "named"), [("load_network", {"name": "m"}), ("query_network", {})]
)
def test_a_large_model_is_uploaded_in_chunks(
    client: Any, fake: Fake, method: str, named: dict[str, str]
) -> None:
    model = np.random.default_rng(0).bytes(INLINE_BYTES + 1)
    progress: list[tuple[int, int]] = []
    getattr(client, method)(
        model, **named, progress=lambda sent, total: progress.append((sent, total))
    )
    assert fake.uploaded == model
    assert fake.requests("UploadModel") == [[CHUNK_BYTES, CHUNK_BYTES, 1]]
    requests = fake.requests("LoadNetwork") + fake.requests("QueryNetwork")
    assert requests[0].model.digest == "sha256:0"
    assert [sent for sent, _ in progress] == [CHUNK_BYTES, 2 * CHUNK_BYTES, len(model)]
    assert {total for _, total in progress} == {len(model)}


def test_no_message_of_a_load_needs_a_large_limit(client: Any, fake: Fake) -> None:
    client.load_network(bytes(INLINE_BYTES), name="m")
    (request,) = fake.requests("LoadNetwork")
    assert max(request.ByteSize(), CHUNK_BYTES) < 2**20


def test_a_small_model_is_not_uploaded(client: Any, fake: Fake) -> None:
    client.load_network(bytes(INLINE_BYTES), name="m")
    assert not fake.requests("UploadModel")


@pytest.mark.parametrize(
    ("arguments", "field", "message"),
    [
        ({}, "model", "either a model or repository"),
        ({"model": b"m", "repository": "r"}, "model", "either a model or repository"),
        ({"model": "/no/such.onnx"}, "model", "cannot read /no/such.onnx: No such file"),
        ({"model": 5}, "model", "a int is not a model"),
        ({"model": b"m"}, "name", "pass name="),
        ({"model": bytes(INLINE_BYTES + 1)}, "name", "pass name="),
        ({"model": b"m", "name": "m", "config": {"A": []}}, "config['A']", "pass text or a number"),
        (
            {"model": b"m", "name": "m", "preprocessing": {"x": {"layuot": "NCHW"}}},
            "preprocessing['x']",
            "did you mean 'layout'?",
        ),
        (
            {"model": b"m", "name": "m", "preprocessing": {"x": {"dtype": "uint9"}}},
            "preprocessing['x'].dtype",
            "unknown data type 'uint9'",
        ),
        (
            {"model": b"m", "name": "m", "postprocessing": {"y": {"layout": 5}}},
            "postprocessing['y'].layout",
            "postprocessing['y'].layout: ",
        ),
    ],
)
def test_bad_arguments_of_a_load_are_found_before_it_is_sent(
    client: Any, fake: Fake, arguments: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        client.load_network(**arguments)
    assert caught.value.details.field == field
    assert message in str(caught.value)
    assert not fake.calls


def test_a_query_says_what_runs_where(client: Any) -> None:
    query = client.query_network(b"model", device="CPU", config={})
    assert query.supported_layers == {"Relu_0": "CPU"}
    assert query.unsupported == [("F_1", "Foo", "no kernel")]
    assert query.subgraphs == [("CPU", ["Relu_0"], "")]
    assert query.graph is None


def test_a_query_brings_the_graph_if_it_is_wanted(client: Any, fake: Fake) -> None:
    graph = client.query_network(b"model", graph=True).graph
    assert fake.requests("QueryNetwork")[0].graph
    assert [(layer.name, layer.domain, layer.inputs, layer.outputs) for layer in graph.layers] == [
        ("Relu_0", "", ("x",), ("h",)),
        ("F_1", "own", ("h",), ("y",)),
    ]
    assert graph.inputs["x"].shape == ("batch", None)
    assert graph.outputs.names == ("y",)
    assert graph.tensors["h"].shape == (4,)


# ---- inference ----


def test_infer_returns_arrays_by_name(client: Any) -> None:
    outputs = client.network("echo").infer({"x": X})
    assert list(outputs) == ["y"]
    assert outputs["y"].dtype == np.float32
    np.testing.assert_array_equal(outputs["y"], X)
    assert outputs.timings.queue_seconds == 0.25
    assert outputs.timings.inference_seconds == 0.125
    assert outputs.request_id == "made-up"
    assert outputs.generation == 3
    assert outputs.performance_counts == []


def test_large_arrays_travel_in_place_and_arrive_aligned(client: Any, fake: Fake) -> None:
    large = np.random.default_rng(0).random((150, 1001), np.float32)
    outputs = client.network("echo").infer({"x": large})
    np.testing.assert_array_equal(outputs["y"], large)
    assert outputs["y"].flags.aligned
    (request,) = fake.requests("Infer")
    assert request.inputs[0].tensor.attachment == 1
    assert len(request.attachments) == 1


def test_the_options_of_a_request_are_sent(client: Any, fake: Fake) -> None:
    outputs = client.network("echo").infer(
        {"x": X}, outputs=["y"], priority=-3, performance_counts=True, timeout=5
    )
    (request,) = fake.requests("Infer")
    assert list(request.outputs) == ["y"]
    assert request.priority == -3
    assert outputs.performance_counts[0].execution_type == "relu_f32"
    timeout = fake.timeouts[-1]
    assert timeout is not None
    assert 4 < timeout < 5.5


def test_numbers_and_lists_take_the_inputs_type(client: Any) -> None:
    outputs = client.network("echo").infer({"x": [[1, 2.5]]})
    assert outputs["y"].dtype == np.float32
    assert outputs["y"].tolist() == [[1, 2.5]]


def test_performance_counts_and_layers_of_a_network(client: Any) -> None:
    network = client.network("echo")
    assert network.performance_counts()[0].seconds == 0.001
    assert network.layers()[0].op_type == "Relu"


# ---- networks, devices, metrics, configuration ----


def test_networks_are_listed_with_what_failed(client: Any) -> None:
    good, bad = client.networks()
    assert good.name == "echo"
    assert bad.info.state == "FAILED"
    assert bad.info.reason == "no memory"


def test_devices_are_listed_with_why_they_are_down(client: Any) -> None:
    up, down = client.devices()
    assert (up.name, up.state, up.device_ids) == ("CPU", "UP", ("0",))
    assert (down.name, down.state, down.reason) == ("CUDA", "DOWN", "no driver")


def test_metrics_come_with_their_type(client: Any, fake: Fake) -> None:
    assert client.get_metric("CPU", "FULL_DEVICE_NAME", options={"DEVICE_ID": "0"}) == "Fake CPU"
    assert client.get_metric("CPU", "RANGE_FOR_STREAMS") == Range(1, 8, 1)
    assert client.network("echo").get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 4
    first, _, last = fake.requests("GetMetric")
    assert first.target.device == "CPU"
    assert dict(first.options) == {"DEVICE_ID": "0"}
    assert last.target.network == "echo"


def test_configuration_is_read_and_set(client: Any, fake: Fake) -> None:
    network = client.network("echo")
    assert client.get_config("CPU", "PERF_COUNT") is True
    assert network.get_config("PERF_COUNT") is True
    client.set_config("CPU", {"NUM_STREAMS": 2})
    network.set_config({"PERF_COUNT": False})
    of_device, of_network = fake.requests("SetConfig")
    assert of_device.target.device == "CPU"
    assert dict(of_device.config) == {"NUM_STREAMS": "2"}
    assert of_network.target.network == "echo"
    assert dict(of_network.config) == {"PERF_COUNT": "NO"}


def test_extensions_are_sent_as_a_model(client: Any, fake: Fake) -> None:
    assert client.add_extension("CPU", b"functions") == ["custom::Twice"]
    assert fake.requests("AddExtension")[0].functions == b"functions"


def test_an_exported_network_is_imported_and_unloaded(client: Any, fake: Fake) -> None:
    blob = client.network("echo").export()
    assert blob == b"HEADRACE"
    copy = client.import_network(blob, device="CPU", name="copy", config={"A": 1}, replace=True)
    assert copy.name == "copy"
    assert fake.uploaded == blob
    options = fake.requests("ImportNetwork")[0][0].options
    assert options == pb.ImportOptions(name="copy", device="CPU", config={"A": "1"}, replace=True)
    copy.unload()
    assert fake.requests("UnloadNetwork")[0].name == "copy"


def test_a_blob_may_be_a_file(client: Any, fake: Fake, tmp_path: Path) -> None:
    path = tmp_path / "network.blob"
    path.write_bytes(bytes(CHUNK_BYTES + 1))
    client.import_network(path)
    assert len(fake.uploaded) == CHUNK_BYTES + 1
    assert fake.requests("ImportNetwork")[0][0].options.name == "network", "the file's"
    with pytest.raises(errors.InvalidArgument, match="cannot read"):
        client.import_network(tmp_path / "missing")
    with pytest.raises(errors.InvalidArgument, match="pass name="):
        client.import_network(path.read_bytes())


# ---- errors, time limits, retries ----


@pytest.mark.parametrize(
    "error_class",
    [
        errors.NotFound,
        errors.InvalidArgument,
        errors.FailedPrecondition,
        errors.ResourceExhausted,
        errors.DeadlineExceeded,
        errors.AlreadyExists,
        errors.Unimplemented,
        errors.Internal,
    ],
)
def test_every_status_has_its_class(
    client: Any, fake: Fake, error_class: type[errors.Error]
) -> None:
    name = "".join(f"_{c}" if c.isupper() else c for c in error_class.__name__)[1:].upper()
    fake.failures.append(refused(grpc.StatusCode[name], reason="WHY", request_id="r1"))
    with pytest.raises(error_class) as caught:
        client.devices()
    assert type(caught.value) is error_class
    assert caught.value.code is grpc.StatusCode[name]
    assert str(caught.value) == "no"


def test_a_status_without_a_class_is_the_base(client: Any, fake: Fake) -> None:
    fake.failures.append(refused(grpc.StatusCode.DATA_LOSS))
    with pytest.raises(errors.Error) as caught:
        client.devices()
    assert type(caught.value) is errors.Error


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"\xff"])
def test_a_status_that_is_no_document_breaks_the_protocol(document: bytes) -> None:
    with pytest.raises(errors.Internal, match="the server's reply breaks the protocol: the status"):
        replies.status(pb.GetStatusReply(document=document))


def test_details_say_field_reason_and_metadata(client: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="x is negative") as caught:
        client.network("echo").infer({"x": [[-1]]})
    details = caught.value.details
    assert (details.field, details.reason, details.metadata) == (
        "inputs['x']",
        "NEGATIVE",
        {"x": "-1"},
    )


def test_at_debug_the_log_says_under_which_id_the_server_knows_a_call(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", "headrace.client"):
        client.load_network(b"model", name="m").export()
        client.devices()
    said = [each.getMessage() for each in caplog.records if each.name.startswith("headrace.client")]
    assert said == ["LoadNetwork was request r-load", "ExportNetwork was request r-export"]


def test_an_error_of_a_stream_of_replies_arrives(client: Any, fake: Fake) -> None:
    network = client.network("echo")
    fake.failures.append(refused(grpc.StatusCode.UNIMPLEMENTED))
    with pytest.raises(errors.Unimplemented):
        network.export()


def test_a_call_past_its_time_raises_deadline_exceeded(client: Any) -> None:
    network = client.network("echo")
    with pytest.raises(errors.DeadlineExceeded, match="time was up before"):
        network.infer({"x": [[-2]]}, timeout=0.2)


def test_loads_have_no_time_limit_but_the_users(client: Any, fake: Fake) -> None:
    client.load_network(b"model", name="m")
    client.load_network(b"model", name="m", timeout=7000)
    client.devices()
    unlimited, limited, default = fake.timeouts
    assert unlimited is None or unlimited > 1e6
    assert limited is not None
    assert 6000 < limited < 7001
    assert default is not None
    assert default < 61


def test_an_idempotent_call_is_sent_again_when_unavailable(client: Any, fake: Fake) -> None:
    fake.failures.extend([refused(grpc.StatusCode.UNAVAILABLE)] * 2)
    assert len(client.devices()) == 2
    assert len(fake.requests("ListDevices")) == 3


def test_a_call_that_the_server_dropped_is_sent_again(client: Any, fake: Fake) -> None:
    """gRPC's servers answer CANCELLED where they stop, or have too many calls."""
    fake.failures.extend([refused(grpc.StatusCode.CANCELLED)] * 2)
    assert len(client.devices()) == 2
    assert len(fake.requests("ListDevices")) == 3


def test_a_call_that_the_server_dropped_in_its_reply_is_sent_again(client: Any, fake: Fake) -> None:
    fake.begins = True
    fake.failures.extend([refused(grpc.StatusCode.CANCELLED)] * 2)
    assert len(client.devices()) == 2
    assert len(fake.requests("ListDevices")) == 3


def test_a_call_that_the_server_drops_again_and_again_is_unavailable(
    client: Any, fake: Fake
) -> None:
    fake.begins = True
    fake.failures.extend([refused(grpc.StatusCode.CANCELLED)] * 20)
    with pytest.raises(errors.Unavailable, match="dropped the call"):
        client.devices()
    assert len(fake.requests("ListDevices")) == 4


def test_a_call_that_the_server_dropped_and_that_may_not_run_twice_is_unavailable(
    client: Any, fake: Fake
) -> None:
    fake.failures.append(refused(grpc.StatusCode.CANCELLED))
    with pytest.raises(errors.Unavailable, match=r"the server at .* dropped the call: no"):
        client.load_network(b"model", name="m")
    assert len(fake.requests("LoadNetwork")) == 1


def test_a_stream_that_the_server_dropped_is_unavailable(client: Any, fake: Fake) -> None:
    network = client.network("echo")
    fake.failures.append(refused(grpc.StatusCode.CANCELLED))
    with pytest.raises(errors.Unavailable, match="dropped the call"):
        list(network.infer_many([{"x": X}]))


def test_a_stream_that_ends_during_a_write_keeps_the_reason_of_the_server(
    client: Any, fake: Fake
) -> None:
    network = client.network("echo")
    large = {"x": np.zeros((1, 40_000), np.float32)}
    for _ in range(8):
        fake.failures.append(refused(grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN"))
        with pytest.raises(errors.Unavailable) as caught:
            list(network.infer_many([large] * 30))
        assert caught.value.details.reason == "SHUTTING_DOWN"


@pytest.mark.parametrize("timeout", [-1, -math.inf, math.nan, "1"])
def test_a_timeout_that_is_none_is_refused_by_name(client: Any, timeout: Any) -> None:
    network = client.network("echo")
    for call in (
        client.devices,
        partial(network.infer, {"x": X}),
        partial(client.load_network, b"model"),
    ):
        with pytest.raises(errors.InvalidArgument, match="pass a number of seconds") as caught:
            call(timeout=timeout)
        assert caught.value.details.field == "timeout"


@pytest.mark.parametrize("timeout", [1e10, 1e300, pytest.param(10**400, id="long"), math.inf])
def test_a_timeout_that_no_clock_can_hold_is_none_at_all(
    client: Any, fake: Fake, timeout: Any
) -> None:
    network = client.network("echo")
    for call in (
        client.devices,
        partial(network.infer, {"x": X}),
        partial(client.load_network, b"model", name="m"),
    ):
        call(timeout=timeout)


def test_sending_again_is_bounded(client: Any, fake: Fake) -> None:
    fake.failures.extend([refused(grpc.StatusCode.UNAVAILABLE, reason="DRAINING")] * 9)
    with pytest.raises(errors.Unavailable, match=r"^no$"):
        client.devices()
    assert len(fake.requests("ListDevices")) == 4


def test_a_load_is_never_sent_twice(client: Any, fake: Fake) -> None:
    fake.failures.append(refused(grpc.StatusCode.UNAVAILABLE))
    with pytest.raises(errors.Unavailable):
        client.load_network(b"model", name="m")
    assert len(fake.requests("LoadNetwork")) == 1


def test_a_full_queue_raises_with_the_delay(client: Any, fake: Fake) -> None:
    network = client.network("echo")
    fake.failures.append(refused(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_delay_seconds=0.01))
    with pytest.raises(errors.ResourceExhausted) as caught:
        network.infer({"x": X})
    assert caught.value.details.retry_delay_seconds == 0.01


def test_a_full_queue_is_tried_again_if_asked(client: Any, fake: Fake) -> None:
    network = client.network("echo")
    full = refused(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_delay_seconds=0.01)
    fake.failures.extend([full] * 3)
    network.infer({"x": X}, retry_when_full=True)
    assert len(fake.requests("Infer")) == 4
    fake.failures.append(refused(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_delay_seconds=60))
    with pytest.raises(errors.ResourceExhausted):
        network.infer({"x": X}, retry_when_full=True, timeout=50)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_not_there_is_unavailable(kind: str) -> None:
    with running() as gone:
        target = gone.target
    with (
        connected(kind, target) as client,
        pytest.raises(errors.Unavailable, match=f"cannot reach the server at {target}"),
    ):
        client.load_network(b"model", name="m")


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_client_says_so(kind: str, fake: Fake) -> None:
    with connected(kind, fake.target) as client:
        network = client.network("echo")
        client.close()
        client.close()
        with pytest.raises(errors.FailedPrecondition, match="the client is closed"):
            client.devices()
        with pytest.raises(errors.FailedPrecondition, match="the client is closed"):
            network.start_async({"x": X})


@pytest.mark.parametrize("kind", KINDS)
def test_messages_beyond_the_limit_are_not_sent(kind: str, fake: Fake) -> None:
    with connected(kind, fake.target, max_message_bytes=20_000) as client:
        network = client.network("echo")
        with pytest.raises(
            errors.ResourceExhausted, match=r"larger than max .* larger max_message_bytes"
        ):
            network.infer({"x": np.zeros((1, 10_000), np.float32)})


def test_both_clients_have_the_same_methods() -> None:
    def surface(owner: type) -> dict[str, Any]:
        return {
            name: inspect.signature(member).replace(return_annotation=None)
            for name, member in inspect.getmembers(owner, callable)
            if not name.startswith("_") and name not in ("client", "infer_many")
        }

    assert surface(Client) == surface(aio.Client)
    assert surface(Network) == surface(aio.Network)
    for owner in (Client, aio.Client, Network, aio.Network):
        public = [name for name in vars(owner) if not name.startswith("_")]
        assert all(getattr(owner, name).__doc__ for name in public), owner


def test_types_beyond_numpys_own_may_be_options() -> None:
    from headrace.client.options import output_options

    assert output_options({"y": {"dtype": ml_dtypes.bfloat16}})["y"].dtype == pb.DataType.BFLOAT16


def test_an_option_that_has_to_be_text_is_named() -> None:
    from headrace.client.options import input_options

    with pytest.raises(errors.InvalidArgument, match=r"\['x'\]\.layout: pass text, not 5"):
        input_options({"x": {"layout": 5}})  # type: ignore[typeddict-item]


NO_TIMES: list[Any] = [float("nan"), "1", []]


@pytest.mark.parametrize("timeout", NO_TIMES)
def test_a_timeout_that_is_no_number_is_refused(client: Any, fake: Fake, timeout: Any) -> None:
    network = client.network("echo")
    calls: tuple[Callable[[], Any], ...] = (
        lambda: client.devices(timeout=timeout),
        lambda: client.load_network(b"model", name="m", timeout=timeout),
        lambda: network.infer({"x": X}, timeout=timeout),
        lambda: network.infer_many([{"x": X}], timeout=timeout),
    )
    asked = len(fake.calls)
    for call in calls:
        with pytest.raises(errors.InvalidArgument, match="pass a number of seconds"):
            call()
    assert len(fake.calls) == asked


@pytest.mark.parametrize("timeout", [*NO_TIMES, None])
@pytest.mark.parametrize("kind", [Client, aio.Client])
def test_a_client_needs_a_timeout_that_is_a_number(kind: Any, timeout: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="pass a number of seconds"):
        kind("localhost:9000", timeout=timeout)


# ---- addresses ----


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("localhost:9100", "localhost:9100"),
        ("localhost", "localhost:9000"),
        ("localhost:", "localhost:9000"),
        ("10.0.0.7", "10.0.0.7:9000"),
        ("[::1]:9100", "[::1]:9100"),
        ("[::1]", "[::1]:9000"),
        ("::1", "[::1]:9000"),
        ("unix:/run/headrace", "unix:/run/headrace"),
        ("unix-abstract:headrace", "unix-abstract:headrace"),
        ("dns:///localhost", "dns:///localhost"),
        ("dns:localhost", "dns:localhost"),
        ("ipv6:[::1]:9100", "ipv6:[::1]:9100"),
        ("localhost:65535", "localhost:65535"),
        ("ipv4:10.0.0.7:1,10.0.0.8:2", "ipv4:10.0.0.7:1,10.0.0.8:2"),
        ("unix:/run/headrace:99999", "unix:/run/headrace:99999"),
    ],
)
def test_an_address_without_a_port_means_9000(target: str, expected: str) -> None:
    assert parse(target).text == expected


@pytest.mark.parametrize(
    "target", ["", "http://localhost:9000", "https://host", "grpc://host:1", 9000, None, ["a", 1]]
)
@pytest.mark.parametrize("kind", [Client, aio.Client])
def test_what_is_no_address_is_refused(kind: Any, target: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="pass host:port, as localhost:9000"):
        kind(target)


@pytest.mark.parametrize(
    "target",
    [
        "localhost:99999",
        "localhost:0",
        "localhost:-1",
        "localhost:http",
        "localhost:" + "9" * 5000,
        "[::1]:65536",
        "dns:///localhost:99999",
        "dns://127.0.0.1:53/localhost:99999",
        "ipv6:[::1]:99999",
        "ipv4:127.0.0.1:9000,127.0.0.1:99999",
    ],
)
@pytest.mark.parametrize("kind", [Client, aio.Client])
def test_a_port_that_no_server_can_have_is_refused(kind: Any, target: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="is not a port; give one from 1 to 65535"):
        kind(target)


@pytest.mark.parametrize("kind", KINDS)
def test_no_proxy_stands_between_a_client_and_a_server_on_its_machine(
    kind: str, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with connected(kind, fake.target) as client:
        assert client.devices()


class OldHandler(BaseHTTPRequestHandler):
    """Answers gRPC without a line of HTTP's, as the first version of HTTP did."""

    def log_message(self, *_: object) -> None:
        pass


class NewHandler(socketserver.BaseRequestHandler):
    """Answers gRPC as most servers for HTTP do."""

    def handle(self) -> None:
        self.request.recv(64)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("handler", [OldHandler, NewHandler])
@pytest.mark.parametrize("kind", KINDS)
def test_a_port_that_answers_in_http_is_told(kind: str, handler: Any) -> None:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with (
                connected(kind, f"127.0.0.1:{server.server_port}") as client,
                pytest.raises(errors.Unavailable, match="this is a port for HTTP"),
            ):
                client.load_network(b"model", name="m")
        finally:
            server.shutdown()
            thread.join()


def test_a_reply_that_is_no_message_is_an_internal_error() -> None:
    for method in METHODS.values():
        if method.path.rpartition("/")[2] not in ("Infer", "InferStream"):  # the codec reads these
            with pytest.raises(CallFailed, match="a reply that is no") as failed:
                method.deserialize(b"\xff\xff")
            assert failed.value.code is grpc.StatusCode.INTERNAL
