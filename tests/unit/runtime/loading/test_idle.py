"""Networks that are unloaded when nobody uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.loading.entry import USUAL, NetworkEntry, NetworkState, Residence, Tenancy
from headrace.runtime.loading.idle import IdleNetworks
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.transform.options import LoadRequest
from headrace.testing import networks
from headrace.testing.occupied import eventually
from tests.support.hook_plugin import HookPlugin
from tests.support.patience import PATIENCE_SECONDS

SECONDS = 30.0


class Moments:
    """A timer and a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.alarms: dict[object, tuple[float, Callable[[], object]]] = {}

    def __call__(self) -> float:
        return self.now

    def schedule(self, when: float, callback: Callable[[], object]) -> object:
        entry = object()
        self.alarms[entry] = when, callback
        return entry

    def cancel(self, entry: object) -> None:
        self.alarms.pop(entry, None)

    def pass_to(self, now: float) -> None:
        self.now = now
        for entry, (when, callback) in [*self.alarms.items()]:
            if when <= now:
                del self.alarms[entry]
                callback()


class Record:
    def __init__(self, request: LoadRequest) -> None:
        self.request = request


class World:
    """A registry with networks that are loaded by hand."""

    def __init__(self) -> None:
        self.time = Moments()
        self.networks = NetworkRegistry(10)
        self.unloaded: list[LoadRequest] = []
        timer: Any = self.time
        self.idle = IdleNetworks(timer, self.networks, self.unloaded.append, clock=self.time)

    def begin(self, request: LoadRequest, *, replace: bool = False) -> NetworkEntry:
        entry = self.networks.reserve(request.name, "HOOK", Record(request), replace=replace)
        self.idle.watch(request, SECONDS)
        return entry

    def load(self, name: str = "m", *, replace: bool = False) -> LoadRequest:
        request = LoadRequest(name, DeviceName.parse("HOOK"))
        entry = self.begin(request, replace=replace)
        facts: dict[str, Any] = {"sequence_owners": frozenset(), "runs": frozenset(), "states": {}}
        executable: Any = type("Loaded", (), facts)()
        self.networks.publish(entry, executable, lambda _: None)
        entry.last_used = self.time.now
        return request


@pytest.fixture
def world() -> World:
    return World()


def test_a_network_that_nobody_uses_is_unloaded_once(world: World) -> None:
    request = world.load()
    world.time.pass_to(129.0)
    assert world.unloaded == []
    world.time.pass_to(130.0)
    assert world.unloaded == [request]
    world.time.pass_to(1000.0)
    assert world.unloaded == [request]
    assert not world.time.alarms


def test_a_request_puts_it_off(world: World) -> None:
    request = world.load()
    entry = world.networks.acquire("m")
    world.time.pass_to(150.0)
    assert world.unloaded == [], "a request is under way"
    world.networks.release(entry)
    entry.last_used = 150.0
    world.time.pass_to(179.0)
    assert world.unloaded == []
    world.time.pass_to(180.0)
    assert world.unloaded == [request]


def test_a_network_that_is_being_loaded_stays(world: World) -> None:
    entry = world.begin(LoadRequest("m", DeviceName.parse("HOOK")))
    world.time.pass_to(1000.0)
    assert world.unloaded == []
    world.networks.fail(entry, "broken", keep=False)
    world.time.pass_to(2000.0)
    assert world.unloaded == []
    assert not world.time.alarms


def test_a_network_that_has_taken_the_name_is_not_meant(world: World) -> None:
    world.load()
    later = world.load(replace=True)
    world.time.pass_to(130.0)
    assert world.unloaded == [later]


def test_one_that_is_evicted_and_never_asked_for_again_is_unloaded_too(world: World) -> None:
    request = world.load()
    entry = world.networks.find("m")
    again: Any = object()
    entry.tenancy = Tenancy(again=again)
    assert world.networks.evict(entry, lambda record: record, lambda _: None)
    assert world.networks.find("m").state is NetworkState.EVICTED
    world.time.pass_to(130.0)
    assert world.unloaded == [request]


def test_one_whose_configuration_was_changed_is_unloaded_too(world: World) -> None:
    request = world.load()
    changed = replace(request, config={"EXECUTION_TIMEOUT": "1"})
    world.networks.change_record(world.networks.find("m"), lambda _: Record(changed))
    world.time.pass_to(130.0)
    assert world.unloaded == [request]


def test_networks_that_are_gone_are_forgotten(world: World) -> None:
    for name in "abc":
        world.load(name)
        world.networks.retire(name, lambda _: None)
    world.load("d")
    assert len(world.idle._watched) == 1


def test_nothing_is_unloaded_after_the_end(world: World) -> None:
    world.load()
    world.idle.close()
    world.time.pass_to(1000.0)
    assert world.unloaded == []


@pytest.fixture
def core() -> Iterator[Core]:
    core = Core([PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin))], blob_key=b"key")
    yield core
    core.stop()


def load(
    core: Core,
    name: str,
    value: str,
    owner: object = None,
    residence: Residence | None = None,
) -> NetworkEntry:
    request = LoadRequest(name, DeviceName.parse("HOOK"), {"UNLOAD_AFTER_IDLE": value})
    begun = core.load_network(
        request, lambda: networks.add().network, owner=owner, residence=residence
    )
    return begun.result(PATIENCE_SECONDS)


def names(core: Core) -> set[str]:
    return {each.key.name for each in core.networks.entries()}


def test_the_key_unloads_the_network_and_no_other(core: Core) -> None:
    told: list[str] = []
    core.idle.unloaded = told.append
    load(core, "stays", "0")
    load(core, "long", "1000000")
    load(core, "leaves", "0.01")
    eventually(lambda: told == ["leaves"], "the unload")
    assert names(core) == {"stays", "long"}


def test_an_imported_network_is_unloaded_too(core: Core) -> None:
    load(core, "m", "0")
    blob = b"".join(core.export_network("m"))
    config = {"UNLOAD_AFTER_IDLE": "0.01"}
    core.import_network("copy", "", config, blob, replace=False).result(PATIENCE_SECONDS)
    eventually(lambda: names(core) == {"m"}, "the unload")


def test_a_network_of_the_repository_stays_and_says_so(core: Core) -> None:
    entry = load(core, "m", "0.01", owner="repository", residence=USUAL)
    assert entry.executable is not None
    assert any("UNLOAD_AFTER_IDLE has no effect" in each for each in entry.executable.notes)
    assert not core.idle._watched


def test_a_client_s_own_network_from_the_repository_is_unloaded(core: Core) -> None:
    load(core, "m", "0.01", owner="its versions")
    eventually(lambda: not names(core), "the unload")


@pytest.mark.parametrize("residence", [None, USUAL])
@pytest.mark.parametrize("value", ["-1", "soon", "inf"])
def test_a_bad_value_is_refused(core: Core, value: str, residence: Residence | None) -> None:
    with pytest.raises(InvalidArgument, match="UNLOAD_AFTER_IDLE"):
        load(core, "m", value, residence=residence)
