"""What is there after a start: what clients loaded before a kill, and the model repository's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.runtime.system.load_stages import STAGES
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.testing.compare import assert_same_outputs
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import Value
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    assert_settled,
    changes,
    details_of,
    is_running,
    until,
)

ADD, MLP, ENDLESS = networks.add(), networks.mlp(), networks.endless()
SQUARE = Case(
    "square",
    parse("square (float[N] x) => (float[N] y) { y = Mul (x, x) }"),
    {"x": np.ones(2, np.float32)},
)
DEVICES = ("CPU", "TEMPLATE")


def failures(server: Server) -> dict[str, str]:
    """The networks that failed, each with its reason; that health knows of them is asserted."""
    reply = server.stub.ListNetworks(pb.ListNetworksRequest(), timeout=CALL_SECONDS)
    failed = {each.name: each.reason for each in reply.networks if each.state == pb.NETWORK_FAILED}
    health = health_pb2_grpc.HealthStub(server.channel)
    for name in failed:
        status = health.Check(health_pb2.HealthCheckRequest(service=name)).status
        assert status == health_pb2.HealthCheckResponse.NOT_SERVING
    return failed


class Story:
    """A server that was killed with all that it had, and the one that came after it.

    Attributes:
        before: what networks computed before the kill, by name.
        blob: an export of the network "kept".
        ended: how the calls ended that ran when the server was killed.
        damaged: the model of the network "modelless".
    """

    def __init__(self, folder: Path) -> None:
        self.state, self.repository = folder / "state", folder / "repository"
        self.before: dict[str, Mapping[str, Value]] = {}
        self.blob = b""
        self.ended: set[Any] = set()
        options = (
            *BASIC,
            "--state-dir",
            str(self.state),
            "--model-repository",
            str(self.repository),
        )
        self._offer_all()
        with Server(*options) as server:
            self._load_all(server)
            calls = [server.start(f"endless-{device}", ENDLESS.inputs) for device in DEVICES]
            for device in DEVICES:
                until(partial(is_running, server, device))
            server.kill()
            self.ended = {call.code() for call in calls}
        self._damage()
        self.offer("offered", networks.mlp(), 6)
        shutil.rmtree(self.repository / "withdrawn")
        self.after = Server(*options)

    def offer(self, name: str, case: Case, timeout_seconds: int) -> None:
        folder = self.repository / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(case.model.SerializeToString())
        config = f"[config]\nEXECUTION_TIMEOUT = {timeout_seconds}\nPERF_COUNT = true\n"
        (folder / "network.toml").write_text(f'device = "TEMPLATE"\n{config}')

    def _offer_all(self) -> None:
        names = ("offered", "withdrawn", "taken", "good", "garbage", "misdescribed", "misplaced")
        for name in (*names, "not a name"):
            self.offer(name, ADD, 5)
        self.offer("taken", networks.mlp(), 5)
        (self.repository / "garbage" / "model.onnx").write_bytes(b"\xffgarbage")
        (self.repository / "misdescribed" / "network.toml").write_text('devise = "TEMPLATE"\n')
        (self.repository / "misplaced" / "network.toml").write_text('device = "TEMPALTE"\n')

    def _load_all(self, server: Server) -> None:
        server.load(MLP, "CPU", "kept", {"EXECUTION_TIMEOUT": "7"})
        server.load(ADD, "TEMPLATE", "gone")
        server.unload("gone")
        self.blob = server.export("kept")
        server.import_blob(self.blob, "copy")
        self.before["kept"] = server.infer("kept", MLP.inputs)
        server.unload("taken")
        server.load(ADD, "TEMPLATE", "taken")
        for name, source in (("mine", "offered"), ("lost", "withdrawn"), ("offered", "offered")):
            request = pb.LoadNetworkRequest(
                name=name,
                model=pb.ModelSource(repository=source),
                config={"PERF_COUNT": "NO"},
                replace=True,
            )
            server.stub.LoadNetwork(request, timeout=CALL_SECONDS)
        self.before["mine"] = server.infer("mine", ADD.inputs)
        for name in ("sound", "cut", "renamed"):
            server.load(ADD, "TEMPLATE", name)
        server.load(SQUARE, "TEMPLATE", "modelless")
        for device in DEVICES:
            server.load(ENDLESS, device, f"endless-{device}")
            server.load(ADD, device, f"add-{device}")

    def _damage(self) -> None:
        kept = self.state / "networks"
        facts = json.loads((kept / "modelless.json").read_bytes())
        self.damaged = self.state / "models" / f"{facts['model']}.onnx"
        self.damaged.write_bytes(b"\xff cut")
        (kept / "cut.json").write_bytes(b'{"request": {')
        (kept / "renamed.json").write_bytes(b'{"model": "../../../etc/passwd"}')
        (kept / ".x.0123.headrace-tmp").write_bytes(b"half")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    told = Story(tmp_path_factory.mktemp("story"))
    with told.after as server:
        yield told
        assert server.stop() == 0, server.log()


def info(story: Story, name: str) -> pb.NetworkInfo:
    request = pb.GetNetworkRequest(name=name)
    found: pb.NetworkInfo = story.after.stub.GetNetwork(request, timeout=CALL_SECONDS).info
    return found


def test_all_networks_are_there_again_and_no_others(story: Story) -> None:
    assert set(story.after.networks()) == {
        "add-CPU",
        "add-TEMPLATE",
        "copy",
        "endless-CPU",
        "endless-TEMPLATE",
        "good",
        "kept",
        "mine",
        "offered",
        "sound",
        "taken",
    }


def test_networks_compute_the_same_after_a_kill(story: Story) -> None:
    kept = info(story, "kept")
    assert (kept.device, float(kept.config["EXECUTION_TIMEOUT"])) == ("CPU", 7)
    for name in ("kept", "copy"):
        after = story.after.infer(name, MLP.inputs)
        np.testing.assert_array_equal(after["scores"], story.before["kept"]["scores"])


def test_the_key_that_signs_blobs_is_kept(story: Story) -> None:
    assert not changes(story.after.import_blob(story.blob, "again"))
    story.after.unload("again")


def test_a_client_s_network_comes_back_in_place_of_the_repository_s(story: Story) -> None:
    taken = info(story, "taken")
    assert (taken.device, taken.origin) == ("TEMPLATE", "client")
    lines = [line for line in story.after.log().splitlines() if "network taken" in line]
    assert not [line for line in lines if "error" in line.lower()]


def test_a_network_loaded_by_name_comes_back_as_the_repository_has_it_then(story: Story) -> None:
    np.testing.assert_array_equal(story.before["mine"]["z"], ADD.expected()["z"])
    for name in ("mine", "offered"):
        found = info(story, name)
        assert (found.device, found.origin) == ("TEMPLATE", "client")
        assert found.config["PERF_COUNT"] == "NO"
        assert float(found.config["EXECUTION_TIMEOUT"]) == 6
        scores = story.after.infer(name, MLP.inputs)["scores"]
        np.testing.assert_array_equal(scores, MLP.expected()["scores"])


def test_a_network_that_the_repository_no_longer_has_says_so_until_it_is_unloaded(
    story: Story,
) -> None:
    assert "unknown network in the model repository 'withdrawn'" in failures(story.after)["lost"]
    story.after.unload("lost")
    assert not (story.state / "networks" / "lost.json").exists()


def test_a_kill_during_inference_brings_back_the_networks_and_their_counters_at_zero(
    story: Story,
) -> None:
    assert story.ended == {grpc.StatusCode.UNAVAILABLE}
    assert_settled(story.after)
    for device in DEVICES:
        z = np.asarray(story.after.infer(f"add-{device}", ADD.inputs)["z"])
        np.testing.assert_allclose(z, ADD.expected()["z"], rtol=1e-6)


def test_a_state_directory_that_was_damaged_loses_what_was_damaged_alone(story: Story) -> None:
    z = story.after.infer("sound", ADD.inputs)["z"]
    np.testing.assert_array_equal(z, ADD.expected()["z"])
    failed = failures(story.after)
    for name in ("cut", "renamed", "modelless"):
        assert name in story.after.log()
        assert name in failed
    assert "load it again, or unload it" in failed["cut"]
    story.after.unload("cut", "renamed", "modelless")
    files = {file.stem for file in (story.state / "networks").iterdir()}
    assert not files & {"cut", "renamed", "modelless"}
    assert not story.damaged.exists()
    assert not list(story.state.rglob("*.headrace-tmp"))


def test_one_bad_network_in_the_repository_does_not_stop_the_others(story: Story) -> None:
    np.testing.assert_array_equal(story.after.infer("good", ADD.inputs)["z"], ADD.expected()["z"])
    failed = failures(story.after)
    bad = {"garbage", "misdescribed", "misplaced"}
    assert bad <= failed.keys()
    assert "did you mean 'device'" in failed["misdescribed"]
    assert "did you mean 'TEMPLATE'" in failed["misplaced"]
    story.after.unload(*bad)
    assert not bad & failures(story.after).keys()
    log = story.after.log()
    assert "garbage" in log
    assert "'not a name' is not a network name" in log


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


KILLED = """
devices = "KILLED"
[plugins.KILLED]
factory = "tests.support.killed_load:create_plugin"
"""
STAGES_OF_CLIENTS = tuple(stage for stage in STAGES if stage != "copy")  # that is of a store


@pytest.mark.parametrize(
    ("stage", "more"),
    [
        *((stage, ()) for stage in STAGES_OF_CLIENTS),
        *(
            pytest.param(stage, ("--cache-dir", "{}/cache"), marks=pytest.mark.long)
            for stage in STAGES_OF_CLIENTS
        ),
        ("publish", ("--memory-budget", "KILLED=1GiB")),
    ],
)
def test_a_kill_in_any_stage_of_a_load_loses_nothing(
    stage: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    config, order, state = tmp_path / "headrace.toml", tmp_path / "order", tmp_path / "state"
    config.write_text(KILLED)
    options = ("--config", str(config), "--state-dir", str(state))
    added = [each.format(tmp_path) for each in more]
    told = {"TEST_KILL": str(order)}
    add, other = networks.add(), networks.mlp()
    with Server(*options, *added, environment=told) as server:
        server.load(add, "KILLED", "add")
        order.write_text(stage)
        with pytest.raises(grpc.RpcError):
            server.load(other, "KILLED", "other")
        server.process.wait(CALL_SECONDS)
    order.unlink()
    with Server(*options, *added, environment=told) as server:
        reply = server.stub.ListNetworks(pb.ListNetworksRequest(), timeout=CALL_SECONDS)
        there = {each.name for each in reply.networks}
        assert there == ({"add", "other"} if stage == "publish" else {"add"})
        if "other" not in there:
            server.load(other, "KILLED", "other")
        assert_same_outputs(server.infer("add", add.inputs), add.expected(), 0.0)
        assert_same_outputs(server.infer("other", other.inputs), other.expected(), 1e-5)
        assert not list(state.rglob("*.headrace-tmp"))
        assert len(list((state / "models").iterdir())) == 2
        assert "ERROR" not in server.log().upper(), server.log()
        assert server.stop() == 0, server.log()
