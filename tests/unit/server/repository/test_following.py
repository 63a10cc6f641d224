"""How a server's networks follow the folder of its model repository."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    NotFound,
    NotLoaded,
    ResourceExhausted,
)
from headrace.runtime.execution.job import Job, nobody_waits
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.memory_budget import NO_BUDGET, MemoryBudget
from headrace.runtime.loading.registry import NetworkEntry, NetworkState
from headrace.runtime.loading.shadows.shadow import NO_SHADOW, Shadow
from headrace.runtime.system.asker import Asker, asking
from headrace.runtime.transform.options import LoadRequest, Reference
from headrace.server.repository import status
from headrace.server.repository.description import Description
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.folder import NetworkFolder
from headrace.server.repository.repository import Repository
from headrace.server.state import StateDirectory
from headrace.testing import networks
from headrace.testing.occupied import eventually
from tests.support.gate import Gate
from tests.support.hook_plugin import HookPlugin
from tests.support.patience import PATIENCE_SECONDS

MODEL = networks.add().model.SerializeToString()
FAILED, READY = NetworkState.FAILED, NetworkState.READY


class World:
    """A repository on disk, and a server's core that follows it, look by look."""

    def __init__(
        self, folder: Path, max_networks: int = 50, budget: MemoryBudget = NO_BUDGET
    ) -> None:
        self.root = folder / "repository"
        self.root.mkdir(exist_ok=True)
        self.state = StateDirectory(folder / "state", Limits())
        source = PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin))
        self.core = Core(
            [source],
            blob_key=b"key",
            store=self.state,
            max_networks=max_networks,
            budget=budget,
        )
        self.changed: list[str] = []
        files = RepositoryFiles(self.root, Limits())
        self.repository = Repository(self.core, files, self.changed.append)

    def put(self, *parts: str, data: bytes = MODEL, toml: str = "") -> None:
        """A model; and what the network's description says beside its device."""
        folder = self.root.joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(data)
        self.describe(parts[0], toml)

    def describe(self, name: str, toml: str) -> None:
        text = f"device = 'HOOK'\n{toml}"
        path = self.root / name / "network.toml"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)

    def start(self) -> None:
        self.repository.own.start(self.state.shares(), self.state.shadows())
        self.settle()

    def look(self, times: int = 1) -> None:
        """Polls, and waits until what that began has ended."""
        for _ in range(times):
            self.repository.own.poll()
            self.settle()

    def settle(self) -> None:
        """Waits until what was begun has ended, and what follows from that is done."""
        own = self.repository.own

        def ended() -> bool:
            with own.lock:
                return not any(each.loading for each in own.statuses.values())

        eventually(ended, "the end of all loads")

    def ready(self, name: str = "m") -> list[str]:
        return [e.key.version for e in self.core.networks.versions(name) if e.state is READY]

    def serving(self, name: str = "m") -> str:
        entry = self.core.networks.acquire(name)
        self.core.networks.release(entry)
        return entry.key.version

    def generation(self, version: str = "1") -> int:
        return self.core.networks.find("m", version).key.generation

    def reasons(self, name: str = "m") -> dict[str, str]:
        return {row.version: row.reason for row in self.repository.index() if row.name == name}

    def client_loads(self, name: str = "m", *, replace: bool = False) -> None:
        request = LoadRequest(name, DeviceName.parse("HOOK"))
        network = networks.add().network
        self.core.load_network(request, lambda: network, replace=replace).result(PATIENCE_SECONDS)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.core.stop()


# -- added, changed, removed --


def test_the_highest_version_serves_and_no_other_is_loaded(world: World) -> None:
    for version in ("1", "2", "10"):
        world.put("m", version)
    world.start()
    assert (world.ready(), world.serving()) == (["10"], "10")
    assert world.reasons() == {"1": status.LEFT_OUT, "2": status.LEFT_OUT, "10": ""}


def test_a_version_that_comes_is_loaded_when_it_rests_and_takes_the_place_of_the_last(
    world: World,
) -> None:
    world.put("m", "1")
    world.start()
    world.put("m", "2", data=MODEL[: len(MODEL) // 2])
    world.look()
    assert (world.ready(), world.reasons()["2"]) == (["1"], status.COPYING)
    world.put("m", "2")  # the rest of it
    world.look()
    assert (world.ready(), world.reasons()["2"]) == (["1"], status.COPYING)
    world.look()
    assert world.ready() == ["2"]


def test_what_is_renamed_into_place_is_loaded_at_the_first_look(world: World) -> None:
    world.put("m", "1")
    world.start()
    beside = world.root / ".copy"
    beside.mkdir()
    (beside / "model.onnx").write_bytes(MODEL)
    os.utime(beside / "model.onnx", (1, 1))
    beside.rename(world.root / "m" / "2")
    world.look()
    assert world.ready() == ["2"]


def test_a_network_that_comes_is_loaded_and_one_that_goes_is_unloaded(world: World) -> None:
    world.start()
    world.put("m")
    world.look(2)
    assert world.ready() == ["1"]
    shutil.rmtree(world.root / "m")
    world.look()
    assert world.ready() == ["1"]  # it may be one that is being replaced
    world.look()
    assert world.ready() == []
    assert world.reasons() == {}
    assert world.changed[-1] == "m"


def test_a_model_that_changes_is_loaded_again_and_one_that_does_not_is_not(world: World) -> None:
    world.put("m", "1")
    world.start()
    first = world.generation()
    world.look(3)
    assert world.generation() == first
    world.put("m", "1", data=networks.add().model.SerializeToString() + b"")
    world.look(2)
    assert world.generation() > first
    assert world.ready() == ["1"]


def test_a_broken_model_leaves_the_old_one_serving_and_says_why_until_a_good_one_comes(
    world: World,
) -> None:
    world.put("m", "1")
    world.start()
    first = world.generation()
    world.put("m", "1", data=b"broken")
    world.look(2)
    assert (world.ready(), world.generation()) == (["1"], first)
    assert "not a serialised ONNX model" in world.reasons()["1"]
    world.look(3)
    assert world.generation() == first  # it is not tried again and again
    world.put("m", "1")
    world.look(2)
    assert world.generation() > first
    assert world.reasons() == {"1": ""}


def test_a_broken_version_leaves_the_one_before_it_serving(world: World) -> None:
    world.put("m", "1")
    world.put("m", "2", data=b"broken")
    world.start()
    assert world.ready() == []  # nobody wanted version 1
    world.describe("m", "version_policy = 'all'")
    world.look(2)
    assert (world.ready(), world.serving()) == (["1"], "1")
    world.describe("m", "")
    world.look(2)
    assert world.ready() == ["1"]
    world.put("m", "2")
    world.look(2)
    assert world.ready() == ["2"]


def test_a_wrong_description_leaves_everything_as_it_is_and_says_why(world: World) -> None:
    world.put("m", "1")
    world.start()
    world.describe("m", "[nonsense]")
    world.put("m", "2", toml="[nonsense]")
    world.look(2)
    assert world.ready() == ["1"]
    assert "nonsense" in world.reasons()["2"]
    world.describe("m", "")
    world.look(2)
    assert (world.ready(), world.reasons()["2"]) == (["2"], "")


def test_a_description_that_changes_how_to_load_has_the_network_loaded_again(world: World) -> None:
    world.put("m", "1")
    world.start()
    first = world.generation()
    world.describe("m", "version_policy = 'all'")
    world.look(2)
    assert world.generation() == first  # which changes nothing of this version
    world.describe("m", "[config]\nPERF_COUNT = true")
    world.look(2)
    assert world.generation() > first


def test_a_warm_up_file_that_changes_has_the_network_loaded_again(world: World) -> None:
    def write(value: float) -> None:
        x = np.full((2, 3), value, np.float32)
        np.savez(world.root / "new.npz", x=x, y=x)
        (world.root / "new.npz").rename(world.root / "m" / "warmup.npz")

    world.put("m", "1")
    write(1)
    world.describe("m", 'warmup = "warmup.npz"')
    world.start()
    first = world.generation()
    world.look(2)
    assert world.generation() == first
    write(2)
    world.look(2)
    assert world.generation() > first
    (world.root / "m" / "warmup.npz").unlink()
    world.look(2)
    assert "is not a file in the network's folder" in world.repository.own.statuses["m"].reasons[""]
    assert world.ready() == ["1"]


def test_a_batch_size_that_the_model_does_not_have_is_a_reason(world: World) -> None:
    world.put("m", "1", toml="max_batch_size = 4")
    world.start()
    assert "input 'x' of the model has no first dimension of any size" in world.reasons()["1"]
    assert "max_batch_size" in world.reasons()["1"]
    world.describe("m", "max_batch_size = 0")
    world.look(2)
    assert world.ready() == ["1"]


def test_a_link_that_comes_to_lead_out_is_not_followed(world: World, tmp_path: Path) -> None:
    world.put("m", "1")
    world.start()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "model.onnx").write_bytes(MODEL)
    (world.root / "m" / "2").symlink_to(tmp_path / "outside")
    world.look(2)
    assert world.ready() == ["1"]
    assert "leads out" in world.reasons()["2"]


def test_a_file_that_could_not_be_read_is_read_again_though_nothing_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("m", "1")

    def denied(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", denied)
        world.start()
        assert "Permission denied" in world.reasons()["1"]
    world.look()
    assert (world.ready(), world.reasons()) == (["1"], {"1": ""})


def test_a_network_that_fails_in_a_way_nobody_foresaw_ends_neither_start_nor_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "m", "z"):
        world.put(name, "1")
    describe = world.repository.files.describe

    def fails(name: str, folder: NetworkFolder) -> Description:
        if name == "m":
            raise RecursionError
        return describe(name, folder)

    monkeypatch.setattr(world.repository.files, "describe", fails)
    world.start()
    world.look()
    assert [name for name in "amz" if world.ready(name)] == ["a", "z"]
    assert world.reasons() == {"1": "an internal error; the log has it"}


def test_a_folder_without_a_model_is_listed_as_failed_and_its_versions_go(world: World) -> None:
    world.put("m", "1")
    world.start()
    (world.root / "m" / "1" / "model.onnx").rename(world.root / "m" / "net.onnx")
    (world.root / "m" / "1").rmdir()
    world.look()
    assert world.ready() == ["1"]  # perhaps somebody is replacing it
    world.look()
    entry = world.core.networks.find("m", "1")
    assert (entry.state, world.reasons()) == (FAILED, {"1": entry.reason})
    assert "rename the model to model.onnx" in entry.reason
    (world.root / "m" / "net.onnx").rename(world.root / "m" / "model.onnx")
    world.look(2)
    assert (world.ready(), world.reasons()) == (["1"], {"1": ""})


def test_a_newest_version_that_cannot_be_loaded_is_told_and_the_old_one_stays(
    world: World,
) -> None:
    world.put("m", "1")
    world.start()
    (world.root / "m" / "2").mkdir()
    (world.root / "m" / "2" / "net.onnx").write_bytes(MODEL)
    world.look(2)
    assert world.ready() == ["1"]
    assert "found net.onnx" in world.core.networks.find("m", "2").reason


def test_what_lies_beside_a_model_without_effect_is_among_its_notes(world: World) -> None:
    world.put("m", "1")
    world.put("m", "v2")
    world.start()
    executable = world.core.networks.find("m", "1").executable
    assert executable is not None
    assert "v2/model.onnx is not served" in executable.notes[0]


def test_a_network_is_loaded_again_when_the_configuration_of_triton_s_changes(world: World) -> None:
    world.put("m", "1")
    config = world.root / "m" / "config.pbtxt"
    config.write_text("parameters { key: 'PERF_COUNT' value { string_value: 'YES' } }")
    world.start()
    before = world.core.networks.find("m", "1")
    config.write_text("max_batch_size: -1")
    world.look(2)
    assert world.core.networks.find("m", "1") is before
    assert "max_batch_size is -1" in world.reasons()["1"]
    config.write_text("parameters { key: 'PERF_COUNT' value { string_value: 'NO' } }")
    world.look(2)
    entry = world.core.networks.find("m", "1")
    assert entry is not before
    assert entry.record.request.config == {"PERF_COUNT": "NO"}


def test_files_that_change_while_they_are_read_are_not_served(world: World) -> None:
    world.put("m", "1")
    found = world.repository.files.find("m")
    world.put("m", "1", data=MODEL + MODEL)
    with pytest.raises(HeadraceError, match="changed while they were read"):
        world.repository.files.network(found, "1")


def test_networks_beyond_the_limit_come_when_there_is_room(tmp_path: Path) -> None:
    world = World(tmp_path, max_networks=1)
    try:
        world.put("a")
        world.put("b")
        world.start()
        assert (world.ready("a"), world.ready("b")) == (["1"], [])
        assert "as many as the server allows" in world.reasons("b")["1"]
        shutil.rmtree(world.root / "a")
        world.look(3)
        assert world.ready("b") == ["1"]
    finally:
        world.core.stop()


def test_a_version_stays_while_the_one_after_it_cannot_even_begin_to_load(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("m", "1")
    world.start()

    def full(*_: object, **__: object) -> None:
        raise ResourceExhausted("no room")

    world.put("m", "2")
    with monkeypatch.context() as patch:
        patch.setattr(world.core, "load_network", full)
        world.look(3)
        assert (world.ready(), world.reasons()["2"]) == (["1"], "no room")
    world.look()
    assert world.ready() == ["2"]


def test_a_reason_is_logged_once_however_often_the_server_looks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, max_networks=1)
    try:
        world.put("a")
        world.put("beyond")
        world.put("broken", data=b"broken")
        world.put("wrong", toml="[nonsense]")
        world.start()
        world.look(4)
    finally:
        world.core.stop()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert sorted(message.split()[1] for message in errors) == ["beyond", "broken", "wrong"]


def test_a_network_that_goes_while_it_loads_and_fails_is_forgotten(world: World) -> None:
    plugin = world.core.plugins.plugin("HOOK")
    assert isinstance(plugin, HookPlugin)
    gate = Gate()

    def fail(_: object) -> None:
        gate()
        raise InvalidArgument("no memory")

    world.put("m", "1")
    world.put("m", "2", toml="version_policy = 'all'")
    world.start()
    plugin.on_compile = fail
    world.put("m", "3", toml="version_policy = 'all'")
    world.repository.own.poll()
    world.repository.own.poll()
    gate.await_arrivals()
    shutil.rmtree(world.root / "m" / "3")
    world.repository.own.poll()
    gate.open()
    world.settle()
    world.look(2)
    assert (world.ready(), set(world.reasons())) == (["1", "2"], {"1", "2"})


# -- canary --


def test_a_canary_gets_its_share_and_the_description_takes_it_back(world: World) -> None:
    world.put("m", "1")
    world.start()
    world.put("m", "2", toml="[traffic]\n2 = 10")
    world.look(2)
    assert world.ready() == ["1", "2"]
    assert [world.serving() for _ in range(100)].count("2") == 10
    world.describe("m", "[traffic]\n1 = 100")
    world.look(2)
    assert {world.serving() for _ in range(100)} == {"1"}
    world.describe("m", "")
    world.look(2)
    assert (world.ready(), world.serving()) == (["2"], "2")


def test_the_description_gives_a_network_its_shadow_and_a_client_another_one(
    world: World,
) -> None:
    shadow = world.core.shadows.get
    toml = "version_policy = 'all'\n[shadow]\nversion = 1\npercent = 20"
    world.put("m", "1", toml=toml)
    world.put("m", "2", toml=toml)
    world.start()
    assert shadow("m") == Shadow("1", percent=20)
    world.repository.set_shadow("m", Shadow(percent=0))
    world.put("m", "3", toml=toml)
    world.look(2)
    assert (world.ready(), shadow("m")) == (["1", "2", "3"], NO_SHADOW)
    world.repository.unload("m").result(PATIENCE_SECONDS)
    for load in world.repository.load("m", Reference("m")):
        load.result(PATIENCE_SECONDS)
    assert shadow("m") == Shadow("1", percent=20)
    world.describe("m", "version_policy = 'all'")
    world.look(2)
    assert shadow("m") == NO_SHADOW


def test_a_clients_shadow_outlives_a_restart_also_one_that_it_has_ended(
    world: World, tmp_path: Path
) -> None:
    toml = "version_policy = 'all'\n[shadow]\nversion = 1"
    for name in ("m", "n"):
        for version in ("1", "2"):
            world.put(name, version, toml=toml)
    world.start()
    world.repository.set_shadow("m", Shadow("2", percent=7))
    world.repository.set_shadow("n", Shadow(percent=0))
    world.core.stop()
    assert world.state.shadows() == {"m": Shadow("2", percent=7), "n": NO_SHADOW}
    again = World(tmp_path)
    again.start()
    assert [again.core.shadows.get(name) for name in "mn"] == [Shadow("2", percent=7), NO_SHADOW]
    again.repository.unload("m").result(PATIENCE_SECONDS)
    assert again.state.shadows() == {"n": NO_SHADOW}
    again.core.stop()


def test_a_description_may_name_a_device_where_the_first_chosen_request_loads_the_network(
    world: World,
) -> None:
    world.put("m", "1", toml="[shadow]\ndevice = 'HOOK.1'\npercent = 100")
    world.start()
    with pytest.raises(NotFound):
        world.core.networks.find("m.shadow")
    feed = networks.add().inputs
    world.core.networks.submit(world.core.networks.acquire("m"), Job(feed, nobody_waits))

    def is_loaded() -> bool:
        return "m.shadow" in {each.key.name for each in world.core.networks.entries()}

    eventually(is_loaded, "the network was to be loaded")
    assert world.core.networks.find("m.shadow").device == "HOOK.1"
    world.describe("m", "")
    world.look(2)
    eventually(lambda: not is_loaded(), "the network was to be unloaded")


@pytest.mark.parametrize(
    ("toml", "where"),
    [
        ("[shadow]\npercent = 5", ".version"),
        ("[shadow]\nversion = 1\ndevice = 'HOOK'", ".version"),
        ("[shadow]\nversion = true", ".version"),
        ("[shadow]\nversion = 1\npercent = 0.5", ".percent"),
        ("[shadow]\nversion = 1\npercent = 101", ".percent"),
        ("[shadow]\ndevice = '!'", ".device"),
        ("[shadow]\nversion = 1\nshare = 1", ": unknown key 'share'"),
        ("shadow = 3", ": must be a table"),
    ],
)
def test_a_shadow_that_cannot_be_is_the_networks_reason(
    world: World, toml: str, where: str
) -> None:
    world.put("m", "1", toml=toml)
    world.start()
    assert f"network.toml: shadow{where}" in world.reasons()["1"]
    assert world.core.shadows.get("m") == NO_SHADOW


def test_a_clients_shares_go_before_the_descriptions_until_they_are_given_back(
    world: World,
) -> None:
    world.put("m", "1", toml="[traffic]\n2 = 10")
    world.put("m", "2", toml="[traffic]\n2 = 10")
    world.start()
    world.repository.set_traffic("m", {"1": 50, "2": 50})
    world.look(2)
    assert [world.serving() for _ in range(100)].count("2") == 50
    assert world.state.shares() == {"m": {"1": 50, "2": 50}}
    world.repository.set_traffic("m", {})
    assert [world.serving() for _ in range(100)].count("2") == 10
    assert world.state.shares() == {}


def test_a_clients_shares_outlive_a_restart(world: World, tmp_path: Path) -> None:
    for version in ("1", "2"):
        world.put("m", version, toml="version_policy = 'all'")
    world.state.save_shares("m", {"1": 70, "2": 30})
    world.start()
    assert [world.serving() for _ in range(100)].count("2") == 30


def test_a_version_that_has_a_share_stays_though_a_newer_one_comes(world: World) -> None:
    world.put("m", "1", toml="[traffic]\n2 = 100")
    world.put("m", "2", toml="[traffic]\n2 = 100")
    world.start()
    world.put("m", "3", toml="[traffic]\n2 = 100")
    world.look(2)
    assert set(world.ready()) == {"2", "3"}
    assert {world.serving() for _ in range(20)} == {"2"}


def test_a_share_of_a_version_that_is_not_there_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.put("m", "1", toml="[traffic]\n1 = 50\n9 = 50")
    world.start()
    world.look(3)
    told = [each.getMessage() for each in caplog.records if "9" in each.getMessage()]
    assert told == ["network m: no version 9, which its traffic names"]
    assert {world.serving() for _ in range(20)} == {"1"}


# -- clients --


def test_a_network_that_a_client_loaded_under_the_name_wins_and_this_is_said(
    world: World,
) -> None:
    world.client_loads()
    world.put("m", "1")
    world.put("m", "2")
    world.start()
    world.look(2)
    assert world.ready() == ["1"]
    assert set(world.reasons().values()) == {status.CLIENTS}
    world.core.unload_network("m").result(PATIENCE_SECONDS)
    world.look()
    assert world.ready() == ["2"]


def test_a_client_takes_the_place_of_all_versions(world: World) -> None:
    for version in ("1", "2"):
        world.put("m", version, toml="version_policy = 'all'")
    world.start()
    world.client_loads(replace=True)
    world.look(3)
    assert world.ready() == ["1"]
    assert status.CLIENTS in world.reasons()["2"]


def test_a_client_loads_all_versions_again_by_policy(world: World) -> None:
    for version in ("1", "2", "3"):
        world.put("m", version, toml="version_policy = {latest = 2}")
    world.start()
    before = [world.generation("2"), world.generation("3")]
    with pytest.raises(AlreadyExists):
        world.repository.load("m", Reference("m"))
    begun = world.repository.load("m", Reference("m"), replace=True)
    after = [each.result(PATIENCE_SECONDS).key.generation for each in begun]
    assert min(after) > max(before)
    assert world.ready() == ["2", "3"]
    assert [*world.state.networks()] == []


def test_a_client_gives_the_name_back_to_the_repository(world: World) -> None:
    world.client_loads()
    assert [*world.state.networks()] == ["m"]
    world.put("m", "4")
    world.start()
    for each in world.repository.load("m", Reference("m"), replace=True):
        each.result(PATIENCE_SECONDS)
    world.settle()
    assert (world.ready(), [*world.state.networks()]) == (["4"], [])
    world.put("m", "5")
    world.look(2)
    assert world.ready() == ["5"]


def test_a_client_keeps_the_name_if_the_repositorys_cannot_be_loaded(world: World) -> None:
    world.client_loads()
    world.put("m", "2", toml="version_policy = 'all'")
    world.put("m", "3", data=b"broken", toml="version_policy = 'all'")
    world.start()
    begun = world.repository.load("m", Reference("m"), replace=True)
    with pytest.raises(HeadraceError):
        begun[-1].result(PATIENCE_SECONDS)
    world.settle()
    assert (world.ready(), [*world.state.networks()]) == (["1"], ["m"])
    world.put("m", "3", toml="version_policy = 'all'")
    world.look(3)  # which is no reason to take the name from the client
    assert world.ready() == ["1"]


def test_a_client_may_load_versions_under_another_name_and_polling_leaves_them(
    world: World,
) -> None:
    for version in ("1", "2"):
        world.put("m", version, toml="version_policy = 'all'")
    world.start()
    for each in world.repository.load("mine", Reference("m", config={"PERF_COUNT": "YES"})):
        each.result(PATIENCE_SECONDS)
    assert world.ready("mine") == ["1", "2"]
    assert [*world.state.networks()] == ["mine"]
    shutil.rmtree(world.root / "m")
    world.look(2)
    assert (world.ready("m"), world.ready("mine")) == ([], ["1", "2"])


def test_what_a_client_unloads_stays_unloaded_until_its_files_change(world: World) -> None:
    world.put("m", "1")
    world.start()
    world.repository.unload("m").result(PATIENCE_SECONDS)
    world.look(3)
    assert (world.ready(), world.reasons()) == ([], {"1": status.UNLOADED})
    world.put("m", "1")
    world.look(2)
    assert world.ready() == ["1"]


@pytest.mark.parametrize("replaces", [False, True])
def test_what_a_client_unloads_while_it_loads_stays_unloaded(world: World, replaces: bool) -> None:
    if replaces:
        world.put("m", "1")
        world.start()
    plugin, gate = world.core.plugins.plugin("HOOK"), Gate()
    assert isinstance(plugin, HookPlugin)
    plugin.on_compile = lambda _: gate()
    world.put("m", "1")
    world.repository.own.poll()
    world.repository.own.poll()
    gate.await_arrivals()
    world.repository.unload("m").result(PATIENCE_SECONDS)
    gate.open()
    world.settle()
    world.look(3)
    assert (world.ready(), world.reasons()) == ([], {"1": status.UNLOADED})


def test_what_a_client_unloads_while_it_loads_can_be_loaded_again_at_once(world: World) -> None:
    plugin, gate = world.core.plugins.plugin("HOOK"), Gate()
    assert isinstance(plugin, HookPlugin)
    plugin.on_compile = lambda _: gate()
    world.put("m", "1")
    world.repository.own.poll()
    world.repository.own.poll()
    gate.await_arrivals()
    with pytest.raises(AlreadyExists, match="is being loaded"):
        world.repository.load("m", Reference("m"), replace=True)
    world.repository.unload("m").result(PATIENCE_SECONDS)
    (load,) = world.repository.load("m", Reference("m"))
    gate.open()
    load.result(PATIENCE_SECONDS)
    world.settle()
    world.look(2)
    assert (world.ready(), world.reasons()) == (["1"], {"1": ""})


@pytest.mark.parametrize("unloads", [False, True])
def test_a_load_that_has_just_ended_is_in_nobodys_way(world: World, unloads: bool) -> None:
    world.put("m", "1")
    with world.repository.own.lock:  # the end of a load is noted under it
        (first,) = world.repository.load("m", Reference("m"))
        first.result(PATIENCE_SECONDS)
        if unloads:
            world.repository.unload("m").result(PATIENCE_SECONDS)
        (second,) = world.repository.load("m", Reference("m"), replace=True)
        second.result(PATIENCE_SECONDS)
    world.settle()
    world.look(2)
    assert (world.ready(), world.reasons()) == (["1"], {"1": ""})


def test_loads_that_end_at_once_are_begun_once_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = Counter[str]()
    load_network = world.core.load_network

    def load_whole(request: LoadRequest, *args: Any, **options: Any) -> Future[NetworkEntry]:
        loads[request.version] += 1
        load = load_network(request, *args, **options)
        load.result(PATIENCE_SECONDS)
        return load

    monkeypatch.setattr(world.core, "load_network", load_whole)
    for version in ("1", "2", "10"):
        world.put("m", version, toml="version_policy = 'all'")
    world.start()
    world.look(2)
    assert (world.ready(), loads) == (["1", "2", "10"], {"1": 1, "2": 1, "10": 1})
    assert set(world.reasons().values()) == {""}


def test_one_version_is_unloaded_alone(world: World) -> None:
    for version in ("1", "2"):
        world.put("m", version, toml="version_policy = 'all'")
    world.start()
    world.repository.unload("m", "2").result(PATIENCE_SECONDS)
    world.look(2)
    assert (world.ready(), world.serving()) == (["1"], "1")
    with pytest.raises(NotFound, match="no version '3'"):
        world.repository.unload("m", "3")
    assert "3" not in world.repository.own.statuses["m"].reasons


def test_what_is_not_there_or_has_a_fault_is_told_to_the_client(world: World) -> None:
    world.put("m", "1")
    world.start()
    with pytest.raises(NotFound, match="did you mean 'm'"):
        world.repository.load("n", Reference("mm"))
    with pytest.raises(NotFound, match="no version '2'"):
        world.repository.set_traffic("m", {"2": 10})
    with pytest.raises(InvalidArgument):
        world.repository.set_traffic("m", {"1": 101})
    world.describe("m", "version_policy = {specific = [7]}")
    with pytest.raises(FailedPrecondition, match="leaves out all"):
        world.repository.load("n", Reference("m"))


# -- anything --


def at_random(world: World, choose: random.Random) -> None:
    """One thing that somebody does to the repository."""
    name, version = choose.choice("ab"), choose.choice("123")
    folder = world.root / name
    match choose.randrange(8):
        case 0 | 1:
            world.put(name, version, toml=choose.choice(["", "version_policy = 'all'"]))
        case 2:
            world.put(name, version, data=choose.choice([b"broken", MODEL[:50], b""]))
        case 3:
            shutil.rmtree(folder / version, ignore_errors=True)
        case 4:
            shutil.rmtree(folder, ignore_errors=True)
        case 5:
            folder.mkdir(exist_ok=True)
            world.describe(name, choose.choice(["[nonsense]", "", "[traffic]\n1 = 30"]))
        case 6:
            world.look(choose.randrange(3))
        case 7:
            other = world.root / choose.choice("ab")
            if folder.exists() and not other.exists():
                folder.rename(other)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_done_to_the_folder_the_networks_end_as_it_says(
    world: World, seed: int
) -> None:
    choose = random.Random(seed)
    world.start()
    for _ in range(25):
        at_random(world, choose)
    world.look(4)
    for name in "ab":
        folder = world.root / name
        good = {
            path.parent.name
            for path in folder.glob("[123]/model.onnx")
            if path.read_bytes() == MODEL
        }
        there = {path.parent.name for path in folder.glob("[123]/model.onnx")}
        text = (folder / "network.toml").read_text() if there else ""
        ready = set(world.ready(name))
        assert ready <= there
        if "nonsense" in text or not there:
            continue
        wanted = there if "'all'" in text else {max(there)}
        if "[traffic]" in text:
            rest = there - {"1"}
            wanted = (there & {"1"}) | ({max(rest)} if rest else set())
        if wanted <= good:
            assert ready == wanted
        assert good & wanted <= ready
    assert {row.name for row in world.repository.index()} == {
        path.name for path in world.root.iterdir()
    }


# -- loaded at the first request --


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[World]:
    """A server with a memory budget."""
    world = World(tmp_path, budget=MemoryBudget({"HOOK": 2**30}))
    yield world
    world.core.stop()


def states(world: World) -> dict[str, str]:
    return {each.key.name: each.state.value for each in world.core.networks.entries()}


def first_request(world: World, version: str = "") -> None:
    with pytest.raises(NotLoaded) as caught:
        world.core.networks.acquire("m", version)
    cold: Any = caught.value.cold
    told: Future[Any] = Future()
    waiter = cold.loads.wait(cold.entry, told.set_result)
    assert told.result(PATIENCE_SECONDS).error is None
    cold.loads.leave(waiter)


def test_with_a_budget_networks_are_known_and_their_first_request_loads_them(tight: World) -> None:
    tight.put("m", "1")
    tight.put("n", "1", toml="load = 'start'")
    tight.start()
    assert states(tight) == {"m": "known", "n": "ready"}
    assert tight.reasons() == {"1": "its first request loads it"}
    first_request(tight)
    tight.look(2)
    assert (states(tight), tight.reasons()) == ({"m": "ready", "n": "ready"}, {"1": ""})


def test_without_a_budget_a_network_may_wait_for_its_first_request(world: World) -> None:
    world.put("m", "1", toml="load = 'first_request'")
    world.put("n", "1")
    world.start()
    assert states(world) == {"m": "known", "n": "ready"}
    first_request(world)
    assert states(world)["m"] == "ready"


def test_a_known_network_whose_files_change_is_loaded_as_they_are_then(tight: World) -> None:
    tight.put("m", "1")
    tight.start()
    os.utime(tight.root / "m" / "1" / "model.onnx", ns=(1, 1))
    tight.look(3)
    assert states(tight) == {"m": "known"}
    first_request(tight)
    assert tight.ready() == ["1"]


def test_a_loaded_network_whose_files_change_is_loaded_anew_beside_it(tight: World) -> None:
    tight.put("m", "1")
    tight.start()
    first_request(tight)
    before = tight.generation()
    os.utime(tight.root / "m" / "1" / "model.onnx", ns=(1, 1))
    tight.look(3)
    assert tight.ready() == ["1"]
    assert tight.generation() > before


def test_a_known_network_leaves_with_its_folder(tight: World) -> None:
    tight.put("m", "1")
    tight.start()
    shutil.rmtree(tight.root / "m")
    tight.look(3)
    assert states(tight) == {}


def test_who_loads_a_known_network_gets_it_loaded(tight: World) -> None:
    tight.put("m", "1")
    tight.start()
    (load,) = tight.repository.load("m", Reference("m"))
    assert load.result(PATIENCE_SECONDS).state is READY
    tight.look(2)
    assert states(tight) == {"m": "ready"}


def test_a_known_network_that_a_client_unloads_stays_away(tight: World) -> None:
    tight.put("m", "1")
    tight.start()
    tight.repository.unload("m").result(PATIENCE_SECONDS)
    tight.look(2)
    assert states(tight) == {}


def test_versions_that_are_known_share_the_requests(tight: World) -> None:
    toml = "version_policy = 'all'\n[traffic]\n1 = 50\n2 = 50"
    for version in "12":
        tight.put("m", version, toml=toml)
    tight.start()
    assert tight.core.networks.serving("m") == {"1": 50, "2": 50}
    first_request(tight, "1")
    first_request(tight, "2")
    assert tight.ready() == ["1", "2"]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("pinned = 1", "pinned"),
        ("min_idle_seconds = -1", "min_idle_seconds"),
        ("min_idle_seconds = nan", "min_idle_seconds"),
        ("min_idle_seconds = true", "min_idle_seconds"),
        ("load = 'later'", "load"),
    ],
)
def test_how_a_network_stays_in_memory_is_checked(world: World, text: str, field: str) -> None:
    world.put("m", "1", toml=text)
    world.start()
    assert f"network.toml: {field}: must be" in world.reasons()["1"]


def test_loads_by_name_are_shared_out_and_a_stop_waits_for_none(world: World) -> None:
    answers = threading.Event()
    begun = []
    with asking(Asker("eve")):
        begun += [world.repository.threads.submit(answers.wait) for _ in range(20)]
    try:
        with asking(Asker("bob")):
            assert world.repository.threads.submit(lambda: True).result(PATIENCE_SECONDS)
        assert world.repository.stop(), "a thread still waits"
    finally:
        answers.set()
    futures.wait(begun, PATIENCE_SECONDS)
    assert not world.repository.stop()
