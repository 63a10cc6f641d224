"""The status document of a running server: what it says of devices, networks and errors."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.testing import networks
from headrace.testing.case import Case
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    Stream,
    infer_request,
    is_running,
    until,
)
from tests.support.traffic import AFFINITIES, INPUTS, MARKUP, chain


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    (repository / "damaged/1").mkdir(parents=True)
    (repository / "damaged/1/model.onnx").write_bytes(b"this is not a model")
    devices = ("--devices", "CPU,TEMPLATE,HETERO,BATCH")
    with Server(*devices, "--model-repository", str(repository)) as running:
        request = pb.LoadNetworkRequest(
            name="split",
            model=pb.ModelSource(data=chain().SerializeToString()),
            device="HETERO:CPU,TEMPLATE",
            affinities=AFFINITIES,
        )
        running.stub.LoadNetwork(request, timeout=CALL_SECONDS)
        yield running


def status(server: Server, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.get(f"/status{query}"))
    return found


def network(server: Server, name: str) -> dict[str, Any]:
    (found,) = [each for each in status(server)["networks"] if each["name"] == name]
    return dict(found)


def error_of(server: Server, request: str) -> dict[str, Any]:
    """The error of a request. It is noted only after its caller was told."""
    found: list[dict[str, Any]] = []

    def noted() -> bool:
        found[:] = [each for each in status(server)["errors"] if each["request_id"] == request]
        return bool(found)

    until(noted, f"the error of {request} was to be noted")
    (error,) = found
    return error


def device(server: Server, name: str) -> dict[str, Any]:
    (found,) = [each for each in status(server)["devices"] if each["name"] == name]
    return dict(found)


def test_the_server_says_what_it_is(server: Server) -> None:
    document = status(server)
    said = document["server"]
    assert (said["state"], said["grpc"], said["http"]) == ("ready", server.address, server.http)
    assert (said["tls"], said["access_control"], said["private_networks"]) == (False,) * 3
    assert document["process"]["pid"] == server.process.pid
    assert document["caller"] == {"name": "anonymous", "role": "manage"}
    assert document["certificate"] is None
    assert document["time"] == pytest.approx(said["started"] + said["uptime_seconds"])


def test_the_counters_are_those_of_the_metrics(server: Server) -> None:
    before = network(server, "split")
    for _ in range(5):
        server.infer("split", INPUTS)
    now = network(server, "split")
    assert now["requests"]["completed"] - before["requests"]["completed"] == 5
    assert now["accepted"] - before["accepted"] == 5
    assert now["in_flight"] == 0
    seconds = now["request_seconds"]
    assert seconds["count"] == sum(seconds["counts"]) == now["requests"]["completed"]
    assert len(seconds["counts"]) == len(status(server)["bounds"]["seconds"]) + 1
    labels = {"network": "split", "outcome": "completed"}
    assert now["requests"]["completed"] == server.total("headrace_network_requests_total", **labels)
    parts = device(server, "CPU.0")["parts"]["completed"]
    labels = {"device": "CPU.0", "kind": "part", "outcome": "completed"}
    assert parts == server.total("headrace_device_requests_total", **labels) > 0


def test_a_split_network_has_its_subgraphs_and_what_they_read(server: Server) -> None:
    server.infer("split", INPUTS)
    found = network(server, "split")
    assert found["execution_devices"] == ["CPU.0", "TEMPLATE.0"]
    assert [
        (each["number"], each["device"], each["layers"], each["reads"])
        for each in found["subgraphs"]
    ] == [
        (1, "CPU", 2, [{"from": 0, "tensors": 1}]),
        (2, "TEMPLATE", 1, [{"from": 1, "tensors": 1}]),
        (3, "CPU", 1, [{"from": 2, "tensors": 1}]),
        (4, "TEMPLATE", 1, [{"from": 1, "tensors": 1}, {"from": 3, "tensors": 1}]),
    ]
    assert (found["subgraphs"][0]["first"], found["subgraphs"][0]["last"]) == ("square", MARKUP)
    times = [each for each in found["series"] if each["name"] == "subgraph_execution_seconds"]
    assert [each["labels"] for each in times] == [
        {"subgraph": str(number), "device": name}
        for number, name in enumerate(("CPU", "TEMPLATE") * 2, 1)
    ]
    assert all(each["value"]["count"] >= 1 for each in times)


def test_what_runs_in_front_of_a_split_network_has_its_subgraphs(server: Server) -> None:
    case = Case("batched", chain(), {})
    server.load(case, "BATCH:[HETERO:TEMPLATE,CPU](8)")
    try:
        (subgraph,) = network(server, "batched")["subgraphs"]
    finally:
        server.unload("batched")
    assert (subgraph["device"], subgraph["layers"]) == ("TEMPLATE", 5)


def test_errors_of_all_protocols_are_told_with_request_and_network(server: Server) -> None:
    wrong = {"x": np.ones((1, 64), np.float64)}
    with pytest.raises(grpc.RpcError):
        server.infer("split", wrong, id="unary")
    stream = Stream(server.stub)
    stream.send(infer_request("split", wrong, id="streamed"))
    assert stream.next().HasField("error")
    stream.done()
    asked = urllib.request.Request(
        f"http://{server.http}/v2/models/split/infer",
        b'{"inputs": []}',
        headers={"x-request-id": "rest"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=CALL_SECONDS)
    refused.value.close()
    methods = {
        "unary": ("Infer", "INVALID_ARGUMENT"),
        "streamed": ("InferStream", "INVALID_ARGUMENT"),
        "rest": ("POST /v2/models/{model}/infer", "400"),
    }
    for request, (method, code) in methods.items():
        error = error_of(server, request)
        assert (error["method"], error["code"]) == (method, code)
        assert error["network"] == "split"
        assert error["caller"] == "anonymous"
    assert "float64" in error_of(server, "streamed")["message"]


def test_an_error_is_told_as_it_was_sent_with_markup_and_all(server: Server) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        server.infer(MARKUP, INPUTS, id="markup")
    call: Any = refused.value
    error = error_of(server, "markup")
    assert error["message"] == call.details()
    assert MARKUP.partition("'")[0] in error["message"]


def test_a_network_of_the_repository_that_failed_has_its_reason(server: Server) -> None:
    found = network(server, "damaged")
    assert (found["state"], found["origin"]) == ("failed", "repository")
    assert found["reason"]
    document = status(server)
    assert document["networks"][0]["name"] == "damaged"  # what needs a look comes first
    (version,) = document["repository"]["versions"]  # without the networks of clients
    assert (version["name"], version["version"], version["state"]) == ("damaged", "1", "failed")


def test_a_part_of_a_name_chooses_networks(server: Server) -> None:
    document = status(server, "?match=spl")
    assert [each["name"] for each in document["networks"]] == ["split"]
    assert (document["networks_total"], document["networks_left_out"]) == (2, 0)


def test_the_page_names_no_network_and_no_address(server: Server) -> None:
    page = server.get("/")
    assert "split" not in re.sub(r"\.split\(|HETERO split", "", page)
    assert server.address not in page


def test_a_server_that_drains_still_tells_its_status(tmp_path: Path) -> None:
    endless = networks.endless()
    with Server(*BASIC, "--grace-seconds", "300") as server:
        server.load(endless, "TEMPLATE", "endless")
        held = server.start("endless", endless.inputs)
        until(lambda: is_running(server, "TEMPLATE"))
        server.terminate()
        until(lambda: status(server)["server"]["state"] == "shutting down")
        assert network(server, "endless")["in_flight"] == 1
        assert device(server, "TEMPLATE.0")["streams_busy"] == 1
        assert server.get("/").startswith("<!doctype html>")
        server.kill()
        held.cancel()
