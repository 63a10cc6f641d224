"""What a server has from its start, and what becomes of a network that does not come."""

from __future__ import annotations

import asyncio
import logging
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.plugins import pipeline
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import Unavailable
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.memory_budget import NO_BUDGET, MemoryBudget
from headrace.runtime.loading.registry import NetworkState
from headrace.runtime.loading.shadows.shadow import NO_SHADOW, Shadow
from headrace.runtime.pipelines.description import read_pipeline
from headrace.runtime.pipelines.model import network_of
from headrace.runtime.system.asker import NOBODY, Asker
from headrace.runtime.transform.options import LoadRequest, Reference
from headrace.server.access.networks import Networks
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.follower import Follower
from headrace.server.repository.repository import Repository
from headrace.server.repository.startup import Startup
from headrace.server.services.health import HealthReporter
from headrace.server.state import StateDirectory
from headrace.testing import networks
from tests.support.gate import Gate
from tests.support.hook_plugin import HookPlugin
from tests.support.patience import PATIENCE_SECONDS

FAILED, READY = NetworkState.FAILED, NetworkState.READY


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path / "state", Limits())


@pytest.fixture(params=[(NO_BUDGET, 2)])
def core(state: StateDirectory, request: pytest.FixtureRequest) -> Iterator[Core]:
    sources = [
        PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin)),
        PluginSource("PIPELINE", lambda: pipeline.create_plugin),
    ]
    budget, most = request.param
    core = Core(sources, blob_key=b"key", store=state, max_networks=most, budget=budget)
    yield core
    core.stop()


@pytest.fixture
def health(core: Core) -> HealthReporter:
    return HealthReporter(Networks(core.networks))


def keep(state: StateDirectory, *names: str, device: str = "HOOK") -> None:
    with state.keep_model(networks.add().network) as model:
        for name in names:
            state.save_network(LoadRequest(name, DeviceName.parse(device)), model, alone=True)


def pipeline_of(network: str) -> str:
    return f"""
        [[step]]
        name = "s"
        network = "{network}"
        inputs = {{x = "x", y = "y"}}
        outputs = {{z = "z"}}
        [outputs]
        z = "z"
    """


def keep_pipeline(state: StateDirectory, name: str, network: str) -> None:
    made = network_of(read_pipeline(tomllib.loads(pipeline_of(network))), {}, Limits())
    with state.keep_model(made) as model:
        state.save_network(LoadRequest(name, DeviceName.parse("PIPELINE")), model, alone=True)


def offer(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "model.onnx").write_bytes(networks.add().model.SerializeToString())
    (folder / name / "network.toml").write_text('device = "HOOK"', "utf-8")


def start(
    core: Core,
    state: StateDirectory,
    health: HealthReporter,
    repository: Path | None = None,
    meanwhile: Callable[[], object] | None = None,
    *,
    private_networks: bool = False,
) -> None:
    """Starts, and does `meanwhile` on another thread."""

    def changed(name: str) -> None:
        states = {each.state for each in core.networks.versions(name)}
        health.network_is(name, states)

    offered = Repository(core, RepositoryFiles(repository, Limits()), changed)
    startup = Startup(core, state, offered, changed, private_networks=private_networks)

    async def both() -> None:
        loading = asyncio.ensure_future(startup.load())
        if meanwhile is not None:
            await asyncio.to_thread(meanwhile)
        await loading

    asyncio.run(both())


def found(core: Core) -> dict[str, tuple[NetworkState, str, str]]:
    return {
        entry.key.name: (entry.state, entry.device, entry.reason)
        for entry in core.networks.entries()
    }


def test_what_is_kept_and_what_is_offered_is_loaded(
    core: Core, state: StateDirectory, health: HealthReporter, tmp_path: Path
) -> None:
    keep(state, "kept")
    offer(tmp_path / "repository", "offered")
    start(core, state, health, tmp_path / "repository")
    assert found(core) == {"kept": (READY, "HOOK", ""), "offered": (READY, "HOOK", "")}
    assert set(health.service.services()) == {"kept", "offered"}


def test_a_network_whose_model_is_gone_says_so(
    core: Core, state: StateDirectory, health: HealthReporter, tmp_path: Path
) -> None:
    keep(state, "m")
    (model,) = (tmp_path / "state" / "models").iterdir()
    model.unlink()
    start(core, state, health)
    reason = f"{model.name!r} cannot be read: No such file or directory"
    assert found(core) == {"m": (FAILED, "HOOK", reason)}
    assert health.service.services() == ["m"]


def test_a_network_of_a_repository_that_is_not_there_says_so(
    core: Core, state: StateDirectory, health: HealthReporter
) -> None:
    request = LoadRequest("m", DeviceName.parse("HOOK"), reference=Reference("offered", "HOOK"))
    state.save_network(request, "", alone=True)
    start(core, state, health)
    ((failed, device, reason),) = found(core).values()
    assert (failed, device) == (FAILED, "HOOK")
    assert "the server has no model repository (--model-repository)" in reason


def test_the_repository_s_does_not_stand_in_for_a_client_s_that_failed(
    core: Core, state: StateDirectory, health: HealthReporter, tmp_path: Path
) -> None:
    keep(state, "m", device="GONE")
    offer(tmp_path / "repository", "m")
    start(core, state, health, tmp_path / "repository")
    ((failed, device, reason),) = found(core).values()
    assert (failed, device) == (FAILED, "GONE")
    assert reason.startswith("device: unknown device 'GONE'")


@pytest.mark.parametrize("core", [(NO_BUDGET, 9)], indirect=True)
def test_a_network_is_loaded_once_its_device_is_up_again_unless_a_client_has_unloaded_it(
    core: Core, state: StateDirectory, tmp_path: Path
) -> None:
    offer(tmp_path / "repository", "offered")
    keep(state, "kept", "gone")
    keep_pipeline(state, "pipeline", "kept")
    reference = Reference("offered", "HOOK")
    of_reference = LoadRequest("named", DeviceName.parse("HOOK"), reference=reference)
    state.save_network(of_reference, "", alone=True)
    plugin = core.plugins.plugin("HOOK")
    assert isinstance(plugin, HookPlugin)

    def down(_: object) -> None:
        raise Unavailable("device HOOK is being started again")

    async def lose_and_regain() -> None:
        core.states.set("HOOK", DeviceState.RESTARTING)
        plugin.on_compile = down
        loop, ready = asyncio.get_running_loop(), asyncio.Event()

        def changed(_: str) -> None:
            if {each[0] for each in found(core).values()} == {READY}:
                loop.call_soon_threadsafe(ready.set)

        offered = Repository(core, RepositoryFiles(tmp_path / "repository", Limits()), changed)
        await Startup(core, state, offered, changed).load()
        failed = FAILED, "HOOK", "device HOOK is being started again"
        assert found(core).pop("pipeline")[0] is FAILED
        names = "gone", "kept", "named", "offered", "pipeline"
        assert found(core) == {**dict.fromkeys(names, failed), "pipeline": found(core)["pipeline"]}
        core.unload_network("gone").result()
        plugin.on_compile = lambda _: None
        core.states.set("HOOK", DeviceState.UP)
        await asyncio.wait_for(ready.wait(), PATIENCE_SECONDS)
        assert sorted(found(core)) == ["kept", "named", "offered", "pipeline"]

    asyncio.run(lose_and_regain())


def test_a_pipeline_that_is_listed_before_its_network_is_no_error_in_the_log(
    core: Core,
    state: StateDirectory,
    health: HealthReporter,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "repository" / "a-pipeline"
    folder.mkdir(parents=True)
    (folder / "pipeline.toml").write_text(pipeline_of("network"), "utf-8")
    offer(tmp_path / "repository", "network")
    listed = Follower._begin

    def begin(follower: Follower, name: str, *arguments: Any, **more: Any) -> Any:
        load = listed(follower, name, *arguments, **more)
        if name == "a-pipeline":
            load.exception(PATIENCE_SECONDS)  # it ends before its network is listed
        return load

    monkeypatch.setattr(Follower, "_begin", begin)
    start(core, state, health, tmp_path / "repository")
    assert {name: each[0] for name, each in found(core).items()} == {
        "a-pipeline": READY,
        "network": READY,
    }
    assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == []
    assert "step 's': unknown network 'network'" in caplog.text


def test_a_client_s_pipeline_keeps_its_name_until_its_networks_are_loaded(
    core: Core, state: StateDirectory, health: HealthReporter, tmp_path: Path
) -> None:
    keep_pipeline(state, "p", "offered")
    offer(tmp_path / "repository", "offered")
    offer(tmp_path / "repository", "p")
    start(core, state, health, tmp_path / "repository")
    assert found(core) == {"offered": (READY, "HOOK", ""), "p": (READY, "PIPELINE", "")}


def test_a_client_s_pipeline_that_there_is_no_room_for_says_so(
    core: Core, state: StateDirectory, health: HealthReporter
) -> None:
    keep(state, "a", "b")
    keep_pipeline(state, "p", "a")
    start(core, state, health)
    failed, device, reason = found(core)["p"]
    assert (failed, device) == (FAILED, "PIPELINE")
    assert "2 networks are loaded" in reason


def test_those_beyond_the_limit_are_listed_and_can_be_forgotten(
    core: Core, state: StateDirectory, health: HealthReporter
) -> None:
    keep(state, "a", "b", "c", "d")
    start(core, state, health)
    assert {name: facts[0] for name, facts in found(core).items()} == {
        **dict.fromkeys("ab", READY),
        **dict.fromkeys("cd", FAILED),
    }
    assert "2 networks are loaded" in found(core)["d"][2]
    core.unload_network("d").result()
    assert [*state.networks()] == ["a", "b", "c"]


def test_a_network_that_is_unloaded_while_it_loads_is_in_no_list_and_not_in_health(
    core: Core, state: StateDirectory, health: HealthReporter
) -> None:
    keep(state, "m")
    plugin = core.plugins.plugin("HOOK")
    assert isinstance(plugin, HookPlugin)
    gate = Gate()
    plugin.on_compile = lambda _: gate()

    def unload() -> None:
        gate.await_arrivals()
        core.unload_network("m").result()
        gate.open()

    start(core, state, health, meanwhile=unload)
    assert (found(core), health.service.services(), [*state.networks()]) == ({}, [], [])


def test_what_is_no_name_for_a_network_is_logged_and_left(
    core: Core,
    state: StateDirectory,
    health: HealthReporter,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "state" / "networks" / "not a name.json").write_text("{}", "utf-8")
    start(core, state, health)
    assert (found(core), health.service.services()) == ({}, [])
    assert "network not a name was not loaded" in caplog.text


@pytest.mark.parametrize("private", [True, False])
def test_networks_of_tenants_rest_where_all_clients_would_see_them(
    core: Core,
    state: StateDirectory,
    health: HealthReporter,
    caplog: pytest.LogCaptureFixture,
    *,
    private: bool,
) -> None:
    keep(state, "m", "m@token:a")
    state.save_shares("m@token:a", {"1": 100})
    start(core, state, health, private_networks=private)
    names = [entry.key.name for entry in core.networks.entries()]
    assert sorted(names) == (["m", "m@token:a"] if private else ["m"])
    assert ("1 networks of tenants are not loaded" in caplog.text) is not private
    assert [*state.networks()] == ["m", "m@token:a"]


def test_a_kept_network_has_the_shadow_that_a_client_gave_it(
    core: Core, state: StateDirectory, health: HealthReporter
) -> None:
    keep(state, "kept", "other")
    state.save_shadow("kept", Shadow("3", percent=7))
    state.save_shadow("gone", Shadow("3"))
    start(core, state, health)
    found = [core.shadows.get(name) for name in ("kept", "other", "gone")]
    assert found == [Shadow("3", percent=7), NO_SHADOW, NO_SHADOW]


@pytest.mark.parametrize(
    "core", [(NO_BUDGET, 9), (MemoryBudget({"HOOK": 2**30}), 9)], indirect=True
)
def test_a_kept_network_has_the_limits_and_the_view_of_its_owner(
    core: Core, state: StateDirectory, health: HealthReporter
) -> None:
    keep(state, "m@token:a")
    keep_pipeline(state, "p@token:a", "m")
    start(core, state, health, private_networks=True)
    there = {each.key.name: each for each in core.networks.entries()}
    stranger = Asker("token:a", trusted=False, owner="token:a")
    assert {name: each.tenancy.asker for name, each in there.items()} == {
        "m@token:a": stranger,
        "p@token:a": stranger,
    }
    assert there["p@token:a"].state is READY  # its step is the owner's network


def test_a_kept_network_without_an_owner_is_trusted(
    core: Core, state: StateDirectory, health: HealthReporter
) -> None:
    keep(state, "m")
    start(core, state, health)
    assert [each.tenancy.asker for each in core.networks.entries()] == [NOBODY]
