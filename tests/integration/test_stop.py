"""How a server ends, by request or by force, and what the next one finds."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import urllib.error
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from headrace.wire.codec import decode_values
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    Stream,
    assert_settled,
    command_line,
    details_of,
    infer_request,
    outcome_of,
    until,
)


def drained(server: Server) -> None:
    """Sends SIGTERM and returns once the server says that it takes no more work."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=CALL_SECONDS)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    server.terminate()
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()


def is_running(server: Server, device: str) -> bool:
    """Whether the device runs exactly one request."""
    return bool(server.metric("NUMBER_OF_EXEC_INFER_REQUESTS", device) == 1)


def test_sigterm_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    """The stream is busy until its deadline ends it; behind it wait requests that are accepted."""
    held, quick = networks.endless(), networks.add()
    with Server(*BASIC, "--grace-seconds", "60") as server:
        config = pb.SetConfigRequest(
            target=pb.Target(device="TEMPLATE"), config={"NUM_STREAMS": "1", "QUEUE_CAPACITY": "20"}
        )
        server.stub.SetConfig(config, timeout=CALL_SECONDS)
        server.load(held, "TEMPLATE")
        server.load(quick, "TEMPLATE")
        stream = Stream(server.stub)
        stream.send(infer_request("endless", held.inputs, id="held"))
        for number in range(21):  # the last is refused, which says that the others are in
            stream.send(infer_request("add", quick.inputs, id=f"r{number}"))
        refused = stream.next()
        assert (refused.id, outcome_of(refused)) == ("r20", "RESOURCE_EXHAUSTED")
        drained(server)
        stream.send(infer_request("add", quick.inputs, id="new"))
        new = stream.next()
        assert (new.id, outcome_of(new)) == ("new", "UNAVAILABLE")
        with pytest.raises(grpc.RpcError) as caught:
            server.infer("add", quick.inputs)
        details = details_of(caught.value)
        assert details.code is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in details.message
        stream.send(cancel=["held"])
        results = {(each := stream.next()).id: outcome_of(each) for _ in range(21)}
        with pytest.raises(grpc.RpcError) as ended:
            stream.next()
        assert details_of(ended.value).code is grpc.StatusCode.UNAVAILABLE
        assert results == {"held": "CANCELLED", **{f"r{number}": "OK" for number in range(20)}}
        assert server.process.wait(CALL_SECONDS) == 0, server.log()
        assert "Traceback" not in server.log(), server.log()


def test_an_idle_server_stops_with_exit_code_0() -> None:
    with Server(*BASIC) as server:
        assert server.stop() == 0, server.log()


def test_sigterm_ends_a_server_that_is_still_loading_its_networks(tmp_path: Path) -> None:
    settings = tmp_path / "headrace.toml"
    settings.write_text("""
        [plugins.GATED]
        factory = "tests.support.gated_device:create_plugin"
        config = { HOLD = "YES" }
    """)
    for name in ("running", "second", "waiting"):  # more than there are threads that load
        folder = tmp_path / "repository" / name
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(networks.add().model.SerializeToString())
        (folder / "network.toml").write_text('device = "GATED"')
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--config", str(settings), "--devices", "GATED", "--port", address.split(":")[1]]
    command = command_line([*options, "--model-repository", str(tmp_path / "repository")])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            with grpc.insecure_channel(address) as channel:
                stub = rpc.InferenceEngineStub(channel)  # type: ignore[no-untyped-call]
                list_networks = partial(stub.ListNetworks, pb.ListNetworksRequest())
                waiting = {"wait_for_ready": True, "timeout": CALL_SECONDS}
                until(lambda: len(list_networks(**waiting).networks) == 3)
                assert {each.state for each in list_networks().networks} == {pb.LOADING}
            server.terminate()
            said, logged = server.communicate(timeout=CALL_SECONDS)
        finally:
            server.kill()
    assert (server.returncode, said) == (0, b""), logged.decode()
    assert b"stopped" in logged
    assert b"error" not in logged, logged.decode()


def test_who_only_watches_keeps_no_server_from_stopping() -> None:
    """Open watches of its health, and of what it is, outlast the work and not the server."""
    with Server(*BASIC, "--grace-seconds", str(100 * CALL_SECONDS)) as server:
        health = health_pb2_grpc.HealthStub(server.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="nobody"))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        asked = threading.Event()
        question = reflection_pb2.ServerReflectionRequest(list_services="")

        def questions() -> Iterator[reflection_pb2.ServerReflectionRequest]:
            yield question
            asked.wait(CALL_SECONDS)

        reflection = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        answers = reflection.ServerReflectionInfo(questions())
        assert next(answers).list_services_response.service
        assert server.stop() == 0, server.log()
        with pytest.raises(grpc.RpcError) as ended:
            next(watch)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert list(answers) == []
        asked.set()
        assert "Traceback" not in server.log(), server.log()


def test_calls_that_wait_at_sigterm_are_answered_and_new_ones_sent_elsewhere() -> None:
    """The stream is busy until its caller gives up; behind it wait calls that were accepted."""
    held, quick = networks.endless(), networks.add()
    with Server(*BASIC, "--grace-seconds", "60") as server:
        config = pb.SetConfigRequest(
            target=pb.Target(device="TEMPLATE"), config={"NUM_STREAMS": "1"}
        )
        server.stub.SetConfig(config, timeout=CALL_SECONDS)
        server.load(held, "TEMPLATE")
        server.load(quick, "TEMPLATE")
        busy = server.start("endless", held.inputs)
        until(partial(is_running, server, "TEMPLATE"))
        calls = [server.start("add", quick.inputs) for _ in range(20)]
        until(lambda: server.metric("NUMBER_OF_WAITING_INFER_REQUESTS", "TEMPLATE") == 20)
        drained(server)
        with pytest.raises(urllib.error.HTTPError) as unready:
            server.get("/readyz")
        with unready.value:
            assert unready.value.code == 503
        assert server.get("/healthz")
        refused = [
            server.start("add", quick.inputs),
            server.stub.ListNetworks.future(pb.ListNetworksRequest()),
            server.stub.LoadNetwork.future(pb.LoadNetworkRequest(name="late", device="TEMPLATE")),
        ]
        for call in refused:
            details = details_of(call.exception())
            assert details.code is grpc.StatusCode.UNAVAILABLE
            assert "shutting down" in details.message
        assert not any(call.done() for call in calls)
        busy.cancel()
        for call in calls:
            outputs = decode_values(call.result().outputs, call.result().attachments, "outputs")
            np.testing.assert_array_equal(outputs["z"], quick.expected()["z"])
        assert server.process.wait(CALL_SECONDS) == 0, server.log()
        assert "Traceback" not in server.log(), server.log()


def test_what_outlives_the_grace_period_is_cancelled_and_its_callers_are_told() -> None:
    case = networks.endless()
    with Server(*BASIC, "--grace-seconds", "0.2") as server:
        server.load(case, "TEMPLATE")
        call = server.start("endless", case.inputs)
        stream = Stream(server.stub)
        stream.send(infer_request("endless", case.inputs, id="r"))
        stream.send(infer_request("no", case.inputs, id="marker"))
        assert stream.next().id == "marker"
        assert server.stop() == 0, server.log()
        assert call.code() is grpc.StatusCode.UNAVAILABLE
        told = stream.next()
        assert (told.id, outcome_of(told)) == ("r", "CANCELLED")
        assert "grace period" in told.error.message
        with pytest.raises(grpc.RpcError) as ended:
            stream.next()
        assert details_of(ended.value).code is grpc.StatusCode.UNAVAILABLE
        assert "cancelled" in server.log()
        assert "Traceback" not in server.log(), server.log()


def test_networks_are_there_again_after_a_kill(tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path))
    kept, gone = networks.mlp(), networks.add()
    with Server(*BASIC, *state) as server:
        device = "CPU" if "CPU" in server.devices() else "TEMPLATE"
        server.load(kept, device, "kept", {"EXECUTION_TIMEOUT": "7"})
        server.load(gone, "TEMPLATE", "gone")
        server.unload("gone")
        blob = server.export("kept")
        server.import_blob(blob, "copy")
        before = server.infer("kept", kept.inputs)
        server.kill()
    with Server(*BASIC, *state) as server:
        assert server.networks() == ["copy", "kept"]
        reply = server.stub.GetNetwork(pb.GetNetworkRequest(name="kept"), timeout=CALL_SECONDS)
        assert reply.info.device == device
        assert float(reply.info.config["EXECUTION_TIMEOUT"]) == 7
        for name in ("kept", "copy"):
            after = server.infer(name, kept.inputs)
            np.testing.assert_array_equal(after["scores"], before["scores"])
        info = server.import_blob(blob, "again")
        assert not info.notes, "the key that signs blobs is kept too"


def sizeable(layers: int = 30) -> Case:
    """A network that takes a while to load: many layers, and a few megabytes to write."""
    body = " ".join(f"[n{k}] v{k + 1} = Add(v{k}, w)" for k in range(layers))
    text = f"sizeable (float[N,512] v0) => (float[N,512] v{layers}) {{ {body} }}"
    case = parse(text, {"w": np.ones((1024, 512), np.float32)})
    return Case("sizeable", case, {"v0": np.ones((1, 512), np.float32)})


def test_a_client_s_network_comes_back_in_place_of_the_repository_s(tmp_path: Path) -> None:
    state, repository = tmp_path / "state", tmp_path / "repository"
    (repository / "add").mkdir(parents=True)
    (repository / "add" / "model.onnx").write_bytes(networks.mlp().model.SerializeToString())
    options = (*BASIC, "--state-dir", str(state), "--model-repository", str(repository))
    with Server(*options) as server:
        server.unload("add")
        server.load(networks.add(), "TEMPLATE", "add")
        server.kill()
    with Server(*options) as server:
        info = server.stub.GetNetwork(pb.GetNetworkRequest(name="add"), timeout=CALL_SECONDS).info
        assert (info.device, info.origin) == ("TEMPLATE", "client")
        assert server.stop() == 0
        assert "error" not in server.log(), server.log()


@pytest.mark.parametrize(
    "moment",
    [
        "models",  # its model is being written
        "networks",  # or how it was loaded
    ],
)
def test_a_kill_during_a_load_leaves_all_of_the_network_or_nothing(
    moment: str, tmp_path: Path
) -> None:
    state = ("--state-dir", str(tmp_path))
    before, large = networks.add(), sizeable()
    with Server(*BASIC, *state) as server:
        server.load(before, "TEMPLATE")
        request = pb.LoadNetworkRequest(
            name="large",
            model=pb.ModelSource(data=large.model.SerializeToString()),
            device="TEMPLATE",
        )
        call = server.stub.LoadNetwork.future(request, timeout=CALL_SECONDS)
        folder = tmp_path / moment
        known = set(folder.iterdir())
        pause = threading.Event()
        while set(folder.iterdir()) <= known and not call.done():
            pause.wait(1e-4)  # the moment is a short one
        server.kill()
        with pytest.raises(grpc.RpcError):
            call.result()
    with Server(*BASIC, *state) as server:
        there = server.networks()
        assert set(there) - {"large"} == {"add"}
        np.testing.assert_array_equal(
            server.infer("add", before.inputs)["z"], before.expected()["z"]
        )
        if "large" not in there:
            server.load(large, "TEMPLATE", "large")
        (output,) = server.infer("large", large.inputs).values()
        np.testing.assert_array_equal(np.asarray(output), *large.expected().values())
        assert not list(tmp_path.rglob("*.headrace-tmp"))
        assert len(list((tmp_path / "models").iterdir())) == 2
        assert "Traceback" not in server.log(), server.log()
        assert "ERROR" not in server.log().upper(), server.log()
        assert server.stop() == 0, server.log()


def test_a_kill_during_inference_brings_back_the_networks_and_their_counters_at_zero(
    tmp_path: Path,
) -> None:
    state = ("--state-dir", str(tmp_path))
    endless, add = networks.endless(), networks.add()
    with Server(*BASIC, *state) as server:
        for device in ("TEMPLATE", "CPU"):
            server.load(endless, device, f"endless-{device}")
            server.load(add, device, f"add-{device}")
        calls = [
            server.start(f"endless-{device}", endless.inputs) for device in ("TEMPLATE", "CPU")
        ]
        for device in ("TEMPLATE", "CPU"):
            until(partial(is_running, server, device))
        server.kill()
        assert {call.code() for call in calls} == {grpc.StatusCode.UNAVAILABLE}
    with Server(*BASIC, *state) as server:
        assert server.networks() == ["add-CPU", "add-TEMPLATE", "endless-CPU", "endless-TEMPLATE"]
        assert_settled(server)
        for device in ("TEMPLATE", "CPU"):
            z = np.asarray(server.infer(f"add-{device}", add.inputs)["z"])
            np.testing.assert_allclose(z, add.expected()["z"], rtol=1e-6)
        assert server.stop() == 0, server.log()


def test_a_state_directory_that_was_damaged_loses_what_was_damaged_alone(tmp_path: Path) -> None:
    case = networks.add()
    with Server(*BASIC, "--state-dir", str(tmp_path)) as server:
        for name in ("sound", "cut", "renamed"):
            server.load(case, "TEMPLATE", name)
        server.load(networks.mlp(), "TEMPLATE", "modelless")
        server.kill()
    facts = json.loads((tmp_path / "networks" / "modelless.json").read_bytes())
    (tmp_path / "models" / f"{facts['model']}.onnx").write_bytes(b"\xff cut")
    (tmp_path / "networks" / "cut.json").write_bytes(b'{"request": {')
    (tmp_path / "networks" / "renamed.json").write_bytes(b'{"model": "../../../etc/passwd"}')
    (tmp_path / "networks" / ".x.0123.headrace-tmp").write_bytes(b"half")
    with Server(*BASIC, "--state-dir", str(tmp_path)) as server:
        assert server.networks() == ["sound"]
        np.testing.assert_array_equal(server.infer("sound", case.inputs)["z"], case.expected()["z"])
        for name in ("cut", "renamed", "modelless"):
            assert name in server.log()
        assert not list(tmp_path.rglob("*.headrace-tmp"))
        assert server.stop() == 0, server.log()


def test_one_bad_network_in_the_repository_does_not_stop_the_others(tmp_path: Path) -> None:
    case = networks.add()
    for name in ("good", "described", "garbage", "misdescribed", "misplaced", "not a name"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(case.model.SerializeToString())
        (tmp_path / name / "network.toml").write_text('device = "TEMPLATE"\n')
    (tmp_path / "described" / "network.toml").write_text(
        'device = "TEMPLATE"\n[config]\nEXECUTION_TIMEOUT = 5\n'
    )
    (tmp_path / "garbage" / "model.onnx").write_bytes(b"\xffgarbage")
    (tmp_path / "misdescribed" / "network.toml").write_text('devise = "TEMPLATE"\n')
    (tmp_path / "misplaced" / "network.toml").write_text('device = "TEMPALTE"\n')
    with Server(*BASIC, "--model-repository", str(tmp_path)) as server:
        assert server.networks() == ["described", "good"]
        reply = server.stub.ListNetworks(pb.ListNetworksRequest(), timeout=CALL_SECONDS)
        failed = {each.name: each.reason for each in reply.networks if each.state != pb.READY}
        assert failed.keys() == {"garbage", "misdescribed", "misplaced"}
        assert "did you mean 'device'" in failed["misdescribed"]
        assert "did you mean 'TEMPLATE'" in failed["misplaced"]
        health = health_pb2_grpc.HealthStub(server.channel)
        for name in failed:
            status = health.Check(health_pb2.HealthCheckRequest(service=name)).status
            assert status == health_pb2.HealthCheckResponse.NOT_SERVING
            server.unload(name)
        np.testing.assert_array_equal(server.infer("good", case.inputs)["z"], case.expected()["z"])
        log = server.log()
        assert "garbage" in log
        assert "'not a name' is not a network name" in log
        assert server.stop() == 0, server.log()
