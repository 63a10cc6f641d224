"""What those who run a server see and set: logs, bounds, repositories, keys that servers share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    Stream,
    changes,
    details_of,
    infer_request,
    outcome_of,
    until,
)

ADD, ENDLESS = networks.add(), networks.endless()


def ask(server: Server) -> None:
    """One request of each outcome: well, over a stream, refused."""
    server.load(ADD, "TEMPLATE")
    server.infer("add", ADD.inputs, id="well")
    stream = Stream(server.stub)
    stream.send(infer_request("add", ADD.inputs, id="streamed"))
    assert stream.next().id == "streamed"
    stream.done()
    assert list(stream.results) == []
    with pytest.raises(grpc.RpcError) as caught:
        server.infer("dad", ADD.inputs, id="refused")
    assert details_of(caught.value).request_id == "refused"
    assert server.stop() == 0


def lines(server: Server) -> dict[str, dict[str, Any]]:
    """The lines about requests that have ended, by the request's id."""
    written = [json.loads(line) for line in server.log().splitlines()]
    assert all(line["level"] and line["timestamp"] for line in written)
    return {line["request_id"]: line for line in written if "code" in line}


def test_debug_logs_have_a_line_for_each_request_with_its_id() -> None:
    with Server(*BASIC, "--log-level", "debug", "--log-format", "json") as server:
        ask(server)
        found = lines(server)
        log = [json.loads(line) for line in server.log().splitlines()]
    shown = {name: (line["method"], line["code"]) for name, line in found.items()}
    assert shown["well"] == ("Infer", "OK")
    assert shown["streamed"] == ("InferStream", "OK")
    assert shown["refused"] == ("Infer", "NOT_FOUND")
    assert "did you mean 'add'" in found["refused"]["reason"]
    loaded = next(line for line in found.values() if line["method"] == "LoadNetwork")
    (published,) = (line for line in log if line["event"].startswith("network add is loaded"))
    assert published["request_id"] == loaded["request_id"]
    assert (published["network"], published["device"]) == ("add", "TEMPLATE.0")


def test_other_logs_tell_of_the_failed_and_the_slow_requests_alone() -> None:
    with Server(*BASIC, "--log-format", "json") as server:
        ask(server)
        assert lines(server).keys() == {"refused"}
        assert "stopped" in server.log()
    with Server(*BASIC, "--log-format", "json", "--slow-request-seconds", "1e-9") as server:
        ask(server)
        found = lines(server)
    for name in ("well", "streamed"):
        line = found[name]
        assert line["event"] == "slow request"
        assert (line["network"], line["version"], line["device"]) == ("add", "1", "TEMPLATE")
        stages = ("queue_seconds", "execution_seconds", "other_seconds")
        assert line["seconds"] == pytest.approx(sum(line[each] for each in stages), abs=1e-5)
        assert 0 < line["inference_seconds"] <= line["execution_seconds"]


def test_every_call_ends_with_the_id_of_its_request(server: Server) -> None:
    def identifier(call: Any) -> str:
        return str(dict(call.trailing_metadata())["x-request-id"])

    mine = {"metadata": (("x-request-id", "mine"),), "timeout": CALL_SECONDS}
    stub, name = server.stub, "identified"
    parts = iter([pb.UploadModelRequest(chunk=ADD.model.SerializeToString())])
    digest = stub.UploadModel.future(parts, **mine)
    assert identifier(digest) == "mine"
    model = pb.ModelSource(digest=digest.result().digest)
    load = pb.LoadNetworkRequest(name=name, device="TEMPLATE", model=model)
    assert identifier(stub.LoadNetwork.with_call(load, **mine)[1]) == "mine"
    exported = stub.ExportNetwork(pb.ExportNetworkRequest(name=name), **mine)
    assert list(exported)
    assert identifier(exported) == "mine"
    unload = pb.UnloadNetworkRequest(name=name)
    assert identifier(stub.UnloadNetwork.with_call(unload, timeout=CALL_SECONDS)[1])
    with pytest.raises(grpc.RpcError) as caught:
        stub.UnloadNetwork(unload, **mine)
    assert identifier(caught.value) == "mine"


@pytest.mark.parametrize("identifier", ["n\u00e4me", "two\nlines", "i" * 129])
def test_an_error_comes_through_whatever_the_request_is_called(
    server: Server, identifier: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        server.infer("nowhere", ADD.inputs, id=identifier)
    assert details_of(caught.value).request_id == identifier[:128]


def test_more_calls_than_may_be_are_refused_but_for_those_on_health() -> None:
    with Server(*BASIC, "--max-concurrent-rpcs", "2") as server:
        server.load(ENDLESS, "TEMPLATE")
        held = [server.start("endless", ENDLESS.inputs) for _ in range(2)]
        until(lambda: server.total("headrace_network_accepted_total") == 2)
        details = details_of(server.start("endless", ENDLESS.inputs).exception())
        assert details.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--max-concurrent-rpcs" in details.message
        health = health_pb2_grpc.HealthStub(server.channel)
        reply = health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        stream = Stream(server.stub)
        stream.send(infer_request("no", ENDLESS.inputs, id="streams have places of their own"))
        assert outcome_of(stream.next()) == "NOT_FOUND"
        stream.done()
        assert list(stream.results) == []
        for call in held:
            call.cancel()
        until(lambda: server.start("no", {}).code() is grpc.StatusCode.NOT_FOUND)


def test_a_network_of_the_repository_takes_what_its_folder_says(tmp_path: Path) -> None:
    case = networks.image()
    folder = tmp_path / "pictures"
    folder.mkdir()
    onnx.save(case.model, folder / "model.onnx")
    (folder / "network.toml").write_text("""
device = "TEMPLATE"
[config]
EXECUTION_TIMEOUT = 7
[inputs.x]
dtype = "uint8"
layout = "NHWC"
network_layout = "NCHW"
mean = [123.7, 116.3, 103.5]
scale = [58.4, 57.1, 57.4]
[outputs.scores]
dtype = "float64"
""")
    sent = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    mean, scale = np.array([123.7, 116.3, 103.5]), np.array([58.4, 57.1, 57.4])
    taken = ((sent - mean) / scale).transpose(0, 3, 1, 2)
    with Server(*BASIC, "--model-repository", str(tmp_path)) as server:
        reply = server.stub.GetNetwork(pb.GetNetworkRequest(name="pictures"), timeout=CALL_SECONDS)
        (port,) = reply.info.inputs
        assert (port.dtype, port.layout, reply.info.origin) == (pb.UINT8, "NHWC", "repository")
        assert float(reply.info.config["EXECUTION_TIMEOUT"]) == 7
        scores = np.asarray(server.infer("pictures", {"x": sent})["scores"])
    assert scores.dtype == np.float64
    expected = case.expected({"x": np.ascontiguousarray(taken, np.float32)})["scores"]
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3)


def test_a_query_of_a_network_of_the_repository_goes_by_its_folder_as_a_load_does(
    tmp_path: Path,
) -> None:
    for name, said in {"sound": "", "unsound": "[inputs.nobody]\ndtype = 'uint8'"}.items():
        folder = tmp_path / name
        folder.mkdir()
        onnx.save(ADD.model, folder / "model.onnx")
        (folder / "network.toml").write_text(f"device = 'TEMPLATE'\n{said}")
    with Server(*BASIC, "--model-repository", str(tmp_path)) as server:

        def query(name: str, device: str = "") -> pb.QueryNetworkReply:
            request = pb.QueryNetworkRequest(
                model=pb.ModelSource(repository=name), device=device, config={"UNKNOWN": "1"}
            )
            reply: pb.QueryNetworkReply = server.stub.QueryNetwork(request, timeout=CALL_SECONDS)
            return reply

        assert set(query("sound").supported_layers.values()) == {"TEMPLATE"}
        assert set(query("sound", "CPU").supported_layers.values()) == {"CPU"}
        with pytest.raises(grpc.RpcError) as caught:
            query("unsound")
        assert details_of(caught.value).field == "inputs['nobody']"


def test_servers_that_share_a_key_trust_each_other_s_blobs(tmp_path: Path) -> None:
    key = ("--mac-key-file", str(tmp_path / "key"))
    with Server(*BASIC, *key) as first, Server(*BASIC, *key) as second, Server(*BASIC) as stranger:
        first.load(ADD, "CPU")
        blob = first.export("add")
        assert not changes(second.import_blob(blob, "copy"))
        assert any("anew" in note for note in stranger.import_blob(blob, "copy").notes)
        for server in (second, stranger):
            z = np.asarray(server.infer("copy", ADD.inputs)["z"])
            np.testing.assert_allclose(z, ADD.expected()["z"], rtol=1e-6)
