"""REST over real sockets, as clients of the Open Inference Protocol use it."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from headrace.server.services.open_inference.datatypes import datatype_of
from headrace.testing import networks
from headrace.testing.case import Case
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    assert_settled,
    is_running,
    until,
)

ADD, ENDLESS = networks.add(), networks.endless()
LENGTH = "Inference-Header-Content-Length"


def ask(
    server: Server,
    method: str,
    path: str,
    body: bytes | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(server.http, timeout=CALL_SECONDS)
    try:
        sent = json.dumps(body).encode() if isinstance(body, Mapping) else body
        connection.request(method, path, sent, dict(headers or {}))
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def told(server: Server, path: str) -> Any:
    status, _, body = ask(server, "GET", path)
    assert status == 200, body
    return json.loads(body)


def tensor(name: str, array: Any, **more: Any) -> dict[str, Any]:
    datatype = datatype_of(array.dtype, name)
    return {"name": name, "shape": list(array.shape), "datatype": datatype, **more}


def request(case: Case = ADD, **parameters: Any) -> dict[str, Any]:
    arrays = {name: np.asarray(array) for name, array in case.inputs.items()}
    inputs = [tensor(name, array, data=array.tolist()) for name, array in arrays.items()]
    return {"inputs": inputs, "parameters": parameters}


@pytest.fixture(autouse=True)
def _loaded(server: Server) -> Iterator[None]:
    server.load(ADD, "CPU")
    yield
    server.unload(*{"add"} & {*server.networks()})


def test_a_server_and_its_models_say_what_they_are(server: Server) -> None:
    assert told(server, "/v2")["name"] == "headrace"
    assert told(server, "/v2/health/live") == {"live": True}
    assert told(server, "/v2/health/ready") == {"ready": True}
    for path in ("/v2/models/add", "/v2/models/add/versions/1"):
        metadata = told(server, path)
        assert metadata["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [2, 3]}
        assert told(server, f"{path}/ready") == {"name": "add", "ready": True}
        assert told(server, f"{path}/config")["name"] == "add"


def test_a_model_or_version_that_is_not_there_is_not_found(server: Server) -> None:
    for path in ("/v2/models/dad", "/v2/models/add/versions/7"):
        status, _, body = ask(server, "GET", path)
        assert (status, list(json.loads(body))) == (404, ["error"])
        assert ask(server, "GET", f"{path}/ready")[0] == 503
        assert ask(server, "POST", f"{path}/infer", request())[0] == 404


def test_json_in_and_out(server: Server) -> None:
    status, headers, body = ask(server, "POST", "/v2/models/add/infer", {"id": "i", **request()})
    assert (status, headers["Content-Type"]) == (200, "application/json")
    reply = json.loads(body)
    (output,) = reply.pop("outputs")
    assert reply == {"model_name": "add", "model_version": "1", "id": "i"}
    assert output.keys() == {"name", "datatype", "shape", "data"}
    expected = np.asarray(ADD.expected()["z"])
    found = np.array(output["data"], np.float32).reshape(output["shape"])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("compressed", [False, True])
def test_binary_in_and_out(server: Server, compressed: bool) -> None:
    arrays = {name: np.asarray(array) for name, array in ADD.inputs.items()}
    binary = b"".join(array.tobytes() for array in arrays.values())
    inputs = [
        tensor(name, array, parameters={"binary_data_size": array.nbytes})
        for name, array in arrays.items()
    ]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers, body = {LENGTH: str(len(text))}, text + binary
    if compressed:
        headers["Content-Encoding"], body = "gzip", gzip.compress(body)
    status, said, answer = ask(server, "POST", "/v2/models/add/infer", body, headers)
    assert status == 200
    assert said["Content-Type"] == "application/octet-stream"
    length = int(said[LENGTH])
    (output,) = json.loads(answer[:length])["outputs"]
    assert output["parameters"] == {"binary_data_size": len(answer) - length}
    expected = np.asarray(ADD.expected()["z"])
    found = np.frombuffer(answer[length:], np.float32).reshape(output["shape"])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"inputs": []}, "x"),
        ({"inputs": [tensor("x", np.ones(2, np.int64), data=[1, 2])]}, "x"),
        ({"outputs": [{"name": "q"}]}, "q"),
        ({"outputs": {}}, "outputs"),
        ({"parameters": {"sequence_start": True}}, "sequence_start"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_wrong_request_is_the_client_s_fault_and_named(
    server: Server, changed: dict[str, Any], says: str
) -> None:
    status, headers, body = ask(server, "POST", "/v2/models/add/infer", {**request(), **changed})
    assert status in (400, 404)
    assert says in json.loads(body)["error"]
    assert headers["X-Request-Id"]


def test_many_requests_at_a_time_are_answered_on_connections_that_stay(server: Server) -> None:
    def ask_often(_: int) -> set[int]:
        connection = http.client.HTTPConnection(server.http, timeout=CALL_SECONDS)
        body, found = json.dumps(request()).encode(), set()
        for _ in range(50):
            connection.request("POST", "/v2/models/add/infer", body)
            reply = connection.getresponse()
            reply.read()
            found.add(reply.status)
        connection.close()
        return found

    labels = {"path": "/v2/models/{model}/infer", "code": "200"}
    before = server.total("headrace_http_requests_total", **labels)
    with ThreadPoolExecutor(16) as pool:
        assert set.union(*pool.map(ask_often, range(16))) == {200}
    until(lambda: server.total("headrace_http_requests_total", **labels) == before + 16 * 50)
    assert_settled(server)


def test_a_client_that_leaves_cancels_its_request(server: Server) -> None:
    server.load(ENDLESS, "TEMPLATE", "endless")
    body = json.dumps(request(ENDLESS)).encode()
    head = f"POST /v2/models/endless/infer HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    host, _, port = server.http.rpartition(":")
    cancelled = {"network": "endless", "outcome": "cancelled"}
    with socket.create_connection((host, int(port)), CALL_SECONDS) as client:
        client.sendall(head.encode() + body)
        until(lambda: is_running(server, "TEMPLATE"))
    until(lambda: server.total("headrace_network_requests_total", **cancelled) == 1)
    server.unload("endless")
    assert_settled(server)


def test_a_deadline_that_passes_is_a_gateway_timeout(server: Server) -> None:
    server.load(ENDLESS, "TEMPLATE", "endless")
    document = request(ENDLESS, timeout=50_000)
    status, _, body = ask(server, "POST", "/v2/models/endless/infer", document)
    assert (status, "deadline" in json.loads(body)["error"]) == (504, True)
    server.unload("endless")


def test_statistics_count_what_was_asked_and_are_numbers(server: Server) -> None:
    def counted() -> tuple[int, int]:
        (stats,) = told(server, "/v2/models/add/stats")["model_stats"]
        success = stats["inference_stats"]["success"]
        return success["count"], success["ns"]

    before, nanoseconds = counted()
    ask(server, "POST", "/v2/models/add/infer", request())
    after, more = counted()
    assert after == before + 1
    assert more > nanoseconds
    names = [each["name"] for each in told(server, "/v2/models/stats")["model_stats"]]
    assert "add" in names


def test_models_are_loaded_listed_and_unloaded(server: Server) -> None:
    path = "/v2/repository"
    model = base64.b64encode(ADD.model.SerializeToString()).decode()
    config = json.dumps({"name": "brought", "backend": "onnxruntime"})
    files = {"parameters": {"config": config, "file:1/model.onnx": model}}
    status, _, body = ask(server, "POST", f"{path}/models/brought/load", files)
    assert (status, body) == (200, b"{}")
    assert ask(server, "POST", "/v2/models/brought/infer", request())[0] == 200
    status, _, body = ask(server, "POST", f"{path}/index", {"ready": True})
    row = {"name": "brought", "version": "1", "state": "READY", "reason": ""}
    assert row in json.loads(body)
    assert ask(server, "POST", f"{path}/models/brought/unload")[0] == 200
    assert ask(server, "GET", "/v2/models/brought")[0] == 404
    assert row not in json.loads(ask(server, "POST", f"{path}/index")[2])


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"file:1/model.onnx": "?"}, "base64"),
        ({"file:1/model.onnx": 1}, "base64"),
        ({"config": "{"}, "config"),
        ({"nonsense": 1}, "nonsense"),
        ({"config": [1]}, "config"),
    ],
)
def test_a_wrong_load_is_the_client_s_fault(
    server: Server, parameters: dict[str, Any], says: str
) -> None:
    path = "/v2/repository/models/brought/load"
    status, _, body = ask(server, "POST", path, {"parameters": parameters})
    assert (status, says in json.loads(body)["error"]) == (400, True)


def test_shared_memory_that_is_off_is_refused_with_its_option(server: Server) -> None:
    region = {"key": "/none", "offset": 0, "byte_size": 8}
    path = "/v2/systemsharedmemory"
    status, _, body = ask(server, "POST", f"{path}/region/r/register", region)
    assert (status, "--allow-client-shared-memory" in body.decode()) == (400, True)
    assert told(server, f"{path}/status") == []
    assert ask(server, "POST", f"{path}/unregister")[0] == 200
    assert ask(server, "POST", f"{path}/region/r/unregister")[0] == 200
    assert told(server, "/v2/cudasharedmemory/status") == []
    assert ask(server, "POST", "/v2/cudasharedmemory/region/r/register", {})[0] == 501
    assert ask(server, "POST", "/v2/cudasharedmemory/unregister")[0] == 200


def test_log_and_trace_settings_are_told_and_bounded(server: Server) -> None:
    assert told(server, "/v2/logging")["log_info"] is True
    assert told(server, "/v2/trace/setting")["trace_level"] == ["OFF"]
    assert ask(server, "POST", "/v2/logging", {"log_infos": True})[0] == 404
    assert ask(server, "POST", "/v2/logging", {"log_info": [1]})[0] == 400
    assert ask(server, "POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]})[0] == 501


def test_a_server_that_stops_finishes_what_it_has_and_refuses_what_comes() -> None:
    with Server(*BASIC, "--grace-seconds", "120") as server, ThreadPoolExecutor(1) as pool:
        server.load(ENDLESS, "TEMPLATE", "endless")
        path, document = "/v2/models/endless/infer", request(ENDLESS)
        running = pool.submit(ask, server, "POST", path, document)
        until(lambda: is_running(server, "TEMPLATE"))
        server.terminate()
        until(lambda: ask(server, "GET", "/v2/health/ready")[0] == 503)
        status, headers, body = ask(server, "POST", path, document)
        assert (status, "shutting down" in json.loads(body)["error"]) == (503, True)
        assert int(headers["Retry-After"]) > 0
        assert ask(server, "GET", "/healthz")[0] == 200
        assert not running.done(), running.result()
        server.terminate()  # a second time: at once
        assert running.result(CALL_SECONDS)[0] == 503
        assert server.process.wait(CALL_SECONDS) == 0
        assert "Traceback" not in server.log()
