"""How a server ends, by request or by force, and what the next one finds."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import (
    CALL_SECONDS,
    Server,
    Stream,
    details_of,
    infer_request,
    outcome_of,
)


def drained(server: Server) -> None:
    """Sends SIGTERM and returns once the server says that it takes no more work."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=CALL_SECONDS)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    server.terminate()
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()


def test_sigterm_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    """The stream is busy until its deadline ends it; behind it wait requests that are accepted."""
    held, quick = networks.endless(), networks.add()
    with Server("--grace-seconds", "60") as server:
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
    with Server() as server:
        assert server.stop() == 0, server.log()


def test_what_outlives_the_grace_period_is_cancelled() -> None:
    case = networks.endless()
    with Server("--grace-seconds", "0.2") as server:
        server.load(case, "TEMPLATE")
        stream = Stream(server.stub)
        stream.send(infer_request("endless", case.inputs, id="r"))
        stream.send(infer_request("no", case.inputs, id="marker"))
        assert stream.next().id == "marker"
        assert server.stop() == 0, server.log()


def test_networks_are_there_again_after_a_kill(tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path))
    kept, gone = networks.mlp(), networks.add()
    with Server(*state) as server:
        device = "CPU" if "CPU" in server.devices() else "TEMPLATE"
        server.load(kept, device, "kept", {"EXECUTION_TIMEOUT": "7"})
        server.load(gone, "TEMPLATE", "gone")
        server.unload("gone")
        blob = server.export("kept")
        server.import_blob(blob, "copy")
        before = server.infer("kept", kept.inputs)
        server.kill()
    with Server(*state) as server:
        assert server.networks() == ["copy", "kept"]
        reply = server.stub.GetNetwork(pb.GetNetworkRequest(name="kept"), timeout=CALL_SECONDS)
        assert reply.info.device == device
        assert float(reply.info.config["EXECUTION_TIMEOUT"]) == 7
        for name in ("kept", "copy"):
            after = server.infer(name, kept.inputs)
            np.testing.assert_array_equal(after["scores"], before["scores"])
        info = server.import_blob(blob, "again")
        assert not info.notes, "the key that signs blobs is kept too"


def test_one_bad_network_in_the_repository_does_not_stop_the_others(tmp_path: Path) -> None:
    case = networks.add()
    for name in ("good", "described", "garbage", "misdescribed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(case.model.SerializeToString())
        (tmp_path / name / "network.toml").write_text('device = "TEMPLATE"\n')
    (tmp_path / "described" / "network.toml").write_text(
        'device = "TEMPLATE"\n[config]\nEXECUTION_TIMEOUT = 5\n'
    )
    (tmp_path / "garbage" / "model.onnx").write_bytes(b"\xffgarbage")
    (tmp_path / "misdescribed" / "network.toml").write_text('devise = "TEMPLATE"\n')
    with Server("--model-repository", str(tmp_path)) as server:
        assert server.networks() == ["described", "good"]
        np.testing.assert_array_equal(server.infer("good", case.inputs)["z"], case.expected()["z"])
        log = server.log()
        assert "garbage" in log
        assert "did you mean 'device'" in log
        assert server.stop() == 0, server.log()
