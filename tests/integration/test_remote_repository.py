"""A model repository in a store: a server copies its networks, follows them, and goes on without
the store. S3 is moto's server, which is one for all tests here."""

from __future__ import annotations

import json
import logging
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import grpc
import numpy as np
import onnx
import pytest
from moto.server import ThreadedMotoServer

from headrace.server.doctor.finding import State
from headrace.server.doctor.places import check_repository
from headrace.server.settings.settings import Settings
from headrace.testing.case import parse
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import BASIC, CALL_SECONDS, Server, refused_start, until
from tests.support.ovms_repository import write as write_ovms
from tests.support.ports import held_port
from tests.support.web_server import web_server

POLLS = ("--repository-poll-seconds", "0.2")
SECRET = "wJalrXUtnFEMI"
X = np.zeros(2, np.float32)


def adds(number: int, *, data: str = "") -> onnx.ModelProto:
    """A model that adds a number, so that its answers tell which version gave them.

    Args:
        data: the file of its external data.
    """
    text = "m (float[2] x) => (float[2] y) { y = Add(x, w) }"
    model: onnx.ModelProto = parse(text, {"w": np.array([number, number], np.float32)})
    if data:
        (weights,) = model.graph.initializer
        onnx.external_data_helper.set_external_data(weights, data)
        weights.ClearField("raw_data")
    return model


class Bucket:
    """A bucket of a store that can be away. What it holds stays meanwhile."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.port = held_port()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self._server: ThreadedMotoServer | None = None
        self.come()
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id="AKIAEXAMPLE",
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        self._client.create_bucket(Bucket="models")

    def come(self) -> None:
        if self._server is None:
            self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
            self._server.start()

    def go(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def close(self) -> None:
        self._client.close()
        self.go()

    def put(self, path: str, data: bytes) -> None:
        self._client.put_object(Bucket="models", Key=path, Body=data)

    def put_model(self, path: str, number: int) -> None:
        self.put(path, adds(number).SerializeToString())

    def remove(self, path: str) -> None:
        self._client.delete_object(Bucket="models", Key=path)


@pytest.fixture(scope="module")
def store() -> Iterator[Bucket]:
    bucket = Bucket()
    yield bucket
    bucket.close()


@pytest.fixture
def bucket(store: Bucket) -> Bucket:
    store.come()
    return store


def options(address: str, cache: Path, *more: str) -> list[str]:
    return [*BASIC, "--model-repository", address, "--cache-dir", str(cache), *more]


def answer(server: Server, network: str = "m") -> float:
    return float(np.asarray(server.infer(network, {"x": X})["y"])[0])


def is_answer(server: Server, number: float, network: str = "m") -> bool:
    """Whether the network is there and answers so."""
    try:
        return answer(server, network) == number
    except grpc.RpcError:
        return False


def up(server: Server) -> float:
    return server.total("headrace_repository_up")


def test_a_bucket_is_served_and_followed(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put_model("follow/m/1/model.onnx", 1)
    bucket.put("follow/m/network.toml", b'device = "TEMPLATE"')
    bucket.put("follow/outside/1/model.onnx", adds(7, data="w.bin").SerializeToString())
    bucket.put("follow/outside/1/w.bin", np.array([7, 7], np.float32).tobytes())
    started = options("s3://models/follow", tmp_path, *POLLS)
    with Server(*started, environment=bucket.environment) as server:
        assert answer(server) == 1
        assert answer(server, "outside") == 7
        assert up(server) == 1
        copied = server.total("headrace_repository_copied_bytes_total")
        assert copied >= server.total("headrace_repository_copies_bytes") > 0
        bucket.put_model("follow/m/2/model.onnx", 2)
        until(lambda: is_answer(server, 2))
        bucket.put_model("follow/new/model.onnx", 3)
        until(lambda: is_answer(server, 3, "new"))
        bucket.put_model("follow/m/2/model.onnx", 4)
        until(lambda: is_answer(server, 4))
        bucket.remove("follow/new/model.onnx")
        until(lambda: "new" not in server.networks())
        assert answer(server) == 4
        assert server.stop() == 0
        log = server.log()
    assert SECRET not in log
    assert "Traceback" not in log
    root = next((tmp_path / ".repository").iterdir())
    assert sorted(each.name for each in root.iterdir() if each.is_symlink()) == ["m", "outside"]


def test_what_is_loaded_stays_while_the_store_is_away(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put_model("away/m/1/model.onnx", 1)
    started = options("s3://models/away", tmp_path, *POLLS)
    with Server(*started, environment=bucket.environment) as server:
        bucket.go()
        until(lambda: up(server) == 0)
        assert answer(server) == 1
        status = json.loads(server.get("/status"))
        assert "s3://models/away cannot be reached" in status["repository"]["error"]
        bucket.come()
        bucket.put_model("away/m/2/model.onnx", 2)
        until(lambda: is_answer(server, 2))
        until(lambda: up(server) == 1)


def test_a_restart_without_the_store_serves_the_copies(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put_model("restart/m/1/model.onnx", 1)
    started = options("s3://models/restart", tmp_path)
    with Server(*started, environment=bucket.environment) as server:
        assert answer(server) == 1
        server.kill()
    bucket.go()
    with Server(*started, environment=bucket.environment) as server:
        assert answer(server) == 1
        assert up(server) == 0
        assert "starts with the copies of an earlier run" in server.log()
        bucket.come()
        bucket.put_model("restart/m/2/model.onnx", 2)
        until(lambda: is_answer(server, 2))  # although it does not poll


def test_a_start_does_not_wait_for_a_store_that_is_away(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put_model("wait/m/1/model.onnx", 1)
    started = options(
        "s3://models/wait", tmp_path / "cache", "--state-dir", str(tmp_path / "state")
    )
    with Server(*started, environment=bucket.environment) as server:
        model = pb.ModelSource(data=adds(5).SerializeToString())
        request = pb.LoadNetworkRequest(name="clients", model=model, device="CPU")
        server.stub.LoadNetwork(request, timeout=CALL_SECONDS)
        assert server.stop() == 0
    shutil.rmtree(tmp_path / "cache")
    bucket.go()
    with Server(*started, environment=bucket.environment) as server:
        assert answer(server, "clients") == 5
        assert "the server starts without it and goes on trying" in server.log()
        assert "cannot be read" in readiness(server)
        bucket.come()
        until(lambda: is_answer(server, 1))
        until(lambda: readiness(server) == "ready")


def readiness(server: Server) -> str:
    try:
        return server.get("/readyz").strip()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_a_start_with_a_budget_copies_no_model(bucket: Bucket, tmp_path: Path) -> None:
    for number in range(12):
        bucket.put_model(f"cold/n{number}/1/model.onnx", number)
        bucket.put_model(f"cold/n{number}/2/model.onnx", number + 100)
        bucket.put(f"cold/n{number}/network.toml", b"# 9 bytes")
    started = options("s3://models/cold", tmp_path, "--memory-budget", "CPU=1GiB")
    with Server(*started, environment=bucket.environment) as server:
        assert server.total("headrace_repository_copied_bytes_total") == 12 * 9
        reasons = {each["name"]: each["reason"] for each in index(server) if each["state"]}
        assert reasons["n3"] == "its next request copies it from the store and loads it"
        assert answer(server, "n3") == 103
        copied = server.total("headrace_repository_copied_bytes_total") - 12 * 9
        assert copied == len(adds(103).SerializeToString())  # the one version that is served
        assert server.total("headrace_load_stage_seconds_count", stage="copy") == 1
        assert answer(server, "n4") == 104
        server.kill()
    bucket.go()
    with Server(*started, environment=bucket.environment) as server:
        assert answer(server, "n3") == 103
        with pytest.raises(grpc.RpcError) as raised:
            answer(server, "n5")
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "EndpointConnectionError" in raised.value.details()
        assert "s3://models" not in raised.value.details()
        bucket.come()
        until(lambda: is_answer(server, 105, "n5"))


def index(server: Server) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(post(server, "/v2/repository/index"))
    return found


def post(server: Server, path: str) -> bytes:
    request = urllib.request.Request(f"http://{server.http}{path}", b"{}")
    with urllib.request.urlopen(request, timeout=CALL_SECONDS) as reply:
        data: bytes = reply.read()
    return data


def test_a_network_that_changed_before_its_first_request_is_loaded_by_its_name(
    bucket: Bucket, tmp_path: Path
) -> None:
    bucket.put_model("late/m/1/model.onnx", 1)
    bucket.put_model("late/other/1/model.onnx", 5)
    started = options("s3://models/late", tmp_path, "--memory-budget", "CPU=1GiB")
    with Server(*started, environment=bucket.environment) as server:
        bucket.put_model("late/m/1/model.onnx", 2)
        with pytest.raises(grpc.RpcError) as raised:
            answer(server)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "m/1/model.onnx changed while it was copied" in raised.value.details()
        post(server, "/v2/repository/models/m/load")
        assert answer(server) == 2
        assert answer(server, "other") == 5


def test_a_bucket_that_is_not_there_refuses_the_start(bucket: Bucket, tmp_path: Path) -> None:
    started = options("s3://nosuchbucket/m", tmp_path)
    code, said = refused_start(*started, environment=bucket.environment)
    error = json.loads(said.splitlines()[-1])["error"]
    assert (code, error["field"]) == (1, "model_repository")
    assert error["message"] == "there is no s3://nosuchbucket/m"


def test_a_folder_of_openvino_model_server_lies_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    written = write_ovms(tmp_path / "models")
    facts = json.loads(written.read_text())
    for number, each in enumerate(facts["model_config_list"]):
        name = each["config"]["name"]
        each["config"]["base_path"] = name if number % 2 else f"s3://models/ovms/{name}"
    written.write_text(json.dumps(facts))
    for file in (tmp_path / "models").rglob("*"):
        if file.is_file():
            bucket.put(f"ovms/{file.relative_to(tmp_path / 'models')}", file.read_bytes())
    config = "s3://models/ovms/config.json"
    started = options("s3://models/ovms", tmp_path / "cache", "--ovms-config", config)
    started += ("--devices", "CPU,PIPELINE")
    with Server(*started, environment=bucket.environment) as server:
        out = server.infer("chain", {"numbers": np.zeros((1, 10), np.float32)})["answer"]
        assert np.asarray(out).tolist() == [[2.0] * 10]


def test_the_doctor_looks_at_the_store(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    bucket.put_model("doctor/m/1/model.onnx", 1)

    def look(address: str, most: int = 1 << 20) -> tuple[State, str]:
        settings = Settings(model_repository=address, cache_dir=tmp_path, max_cache_bytes=most)
        (found,) = check_repository(settings)
        return found.state, found.message

    state, message = look("s3://models/doctor")
    assert (state, "has 1 networks of" in message) == (State.OK, True)
    assert look("s3://models/none") == (State.WARNING, "s3://models/none has no networks")
    assert look("s3://nosuchbucket") == (State.PROBLEM, "there is no s3://nosuchbucket")
    assert look("s3://models/doctor", 10)[0] is State.WARNING
    bucket.put_model("doctor/lost.onnx", 1)
    (found, _) = check_repository(
        Settings(model_repository="s3://models/doctor", cache_dir=tmp_path)
    )
    assert found.message == "lost.onnx: is a file; move it to lost/model.onnx"
    assert list(tmp_path.iterdir()) == []


def test_a_web_server_is_served_and_followed(tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "m" / "1").mkdir(parents=True)
    (models / "m" / "1" / "net.onnx").write_bytes(adds(1).SerializeToString())
    (models / "m" / "config.pbtxt").write_text(
        'platform: "onnxruntime_onnx"\ndefault_model_filename: "net.onnx"\n'
    )
    with (
        web_server(models) as address,
        Server(*options(address, tmp_path / "cache", *POLLS)) as server,
    ):
        assert answer(server) == 1
        (models / "m" / "2").mkdir()
        (models / "m" / "2" / "net.onnx").write_bytes(adds(2).SerializeToString())
        until(lambda: is_answer(server, 2))
