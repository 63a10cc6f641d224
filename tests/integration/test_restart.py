"""What is there after a start: what clients loaded before a kill, and the model repository's."""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    assert_settled,
    details_of,
    is_running,
    until,
)


def failures(server: Server) -> dict[str, str]:
    """The networks that failed, each with its reason; that health knows of them is asserted."""
    reply = server.stub.ListNetworks(pb.ListNetworksRequest(), timeout=CALL_SECONDS)
    failed = {each.name: each.reason for each in reply.networks if each.state == pb.NETWORK_FAILED}
    health = health_pb2_grpc.HealthStub(server.channel)
    for name in failed:
        status = health.Check(health_pb2.HealthCheckRequest(service=name)).status
        assert status == health_pb2.HealthCheckResponse.NOT_SERVING
    return failed


def sizeable(layers: int = 30) -> Case:
    """A network that takes a while to load: many layers, and a few megabytes to write."""
    body = " ".join(f"[n{k}] v{k + 1} = Add(v{k}, w)" for k in range(layers))
    text = f"sizeable (float[N,512] v0) => (float[N,512] v{layers}) {{ {body} }}"
    case = parse(text, {"w": np.ones((1024, 512), np.float32)})
    return Case("sizeable", case, {"v0": np.ones((1, 512), np.float32)})


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


def test_networks_that_do_not_come_back_are_listed_and_kept_until_they_are_unloaded(
    tmp_path: Path,
) -> None:
    state, case = ("--state-dir", str(tmp_path)), networks.add()
    with Server(*BASIC, *state) as server:
        for name in ("anew", "replaced", "unloaded", "waits"):
            server.load(case, "TEMPLATE", name)
        server.kill()
    with Server("--devices", "CPU", *state) as server:
        failed = failures(server)
        assert failed.keys() == {"anew", "replaced", "unloaded", "waits"}
        assert all("unknown device 'TEMPLATE'" in reason for reason in failed.values())
        with pytest.raises(grpc.RpcError) as caught:
            server.infer("waits", case.inputs)
        assert details_of(caught.value).code is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(grpc.RpcError):
            server.load(case, "TEMPLATE", "waits")
        server.unload("unloaded")
        server.load(case, "CPU", "anew")
        model = pb.ModelSource(data=case.model.SerializeToString())
        request = pb.LoadNetworkRequest(name="replaced", model=model, device="CPU", replace=True)
        server.stub.LoadNetwork(request, timeout=CALL_SECONDS)
        assert failures(server).keys() == {"waits"}
        server.kill()
    with Server(*BASIC, *state) as server:
        reply = server.stub.ListNetworks(pb.ListNetworksRequest(), timeout=CALL_SECONDS)
        assert {each.name: (each.device, each.state) for each in reply.networks} == {
            "anew": ("CPU", pb.READY),
            "replaced": ("CPU", pb.READY),
            "waits": ("TEMPLATE", pb.READY),
        }


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


def test_a_network_loaded_by_name_comes_back_as_the_repository_has_it_then(tmp_path: Path) -> None:
    state, repository = tmp_path / "state", tmp_path / "repository"
    before, after = networks.add(), networks.mlp()

    def offer(name: str, case: Case, timeout_seconds: int) -> None:
        (repository / name).mkdir(parents=True, exist_ok=True)
        (repository / name / "model.onnx").write_bytes(case.model.SerializeToString())
        description = f"[config]\nEXECUTION_TIMEOUT = {timeout_seconds}\nPERF_COUNT = true\n"
        (repository / name / "network.toml").write_text(f'device = "TEMPLATE"\n{description}')

    for name in ("offered", "withdrawn"):
        offer(name, before, 5)
    options = (*BASIC, "--state-dir", str(state), "--model-repository", str(repository))
    with Server(*options) as server:
        for name, source in (("mine", "offered"), ("lost", "withdrawn"), ("offered", "offered")):
            request = pb.LoadNetworkRequest(
                name=name,
                model=pb.ModelSource(repository=source),
                config={"PERF_COUNT": "NO"},
                replace=True,
            )
            server.stub.LoadNetwork(request, timeout=CALL_SECONDS)
        z = server.infer("mine", before.inputs)["z"]
        np.testing.assert_array_equal(z, before.expected()["z"])
        assert list((state / "models").iterdir()) == []
        server.kill()
    offer("offered", after, 6)
    shutil.rmtree(repository / "withdrawn")
    with Server(*options) as server:
        assert server.networks() == ["mine", "offered"]
        for name in ("mine", "offered"):
            info = server.stub.GetNetwork(pb.GetNetworkRequest(name=name)).info
            assert (info.device, info.origin) == ("TEMPLATE", "client")
            assert info.config["PERF_COUNT"] == "NO"
            assert float(info.config["EXECUTION_TIMEOUT"]) == 6
            scores = server.infer(name, after.inputs)["scores"]
            np.testing.assert_array_equal(scores, after.expected()["scores"])
        (reason,) = failures(server).values()
        assert "unknown network in the model repository 'withdrawn'" in reason
        server.unload("lost")
        assert not (state / "networks" / "lost.json").exists()


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
        told = call.exception() is None  # in time, on a busy machine
    with Server(*BASIC, *state) as server:
        there = server.networks()
        assert not told or "large" in there
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
        assert failures(server).keys() == {"cut", "renamed", "modelless"}
        assert "load it again, or unload it" in failures(server)["cut"]
        server.unload("cut", "renamed", "modelless")
        assert [file.name for file in (tmp_path / "networks").iterdir()] == ["sound.json"]
        assert len(list((tmp_path / "models").iterdir())) == 1
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
        failed = failures(server)
        assert failed.keys() == {"garbage", "misdescribed", "misplaced"}
        assert "did you mean 'device'" in failed["misdescribed"]
        assert "did you mean 'TEMPLATE'" in failed["misplaced"]
        server.unload(*failed)
        assert failures(server) == {}
        np.testing.assert_array_equal(server.infer("good", case.inputs)["z"], case.expected()["z"])
        log = server.log()
        assert "garbage" in log
        assert "'not a name' is not a network name" in log
        assert server.stop() == 0, server.log()
