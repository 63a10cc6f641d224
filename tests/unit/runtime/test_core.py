"""The core: devices by the names that metrics have, and networks counted under them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.config.device_name import DeviceName, resolve
from headrace.runtime.core import Core
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import InvalidArgument, NotFound, NotInstalled
from headrace.runtime.metrics import families
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest
from headrace.testing import networks
from headrace.testing.counted import numbers
from headrace.testing.leaks import no_leaks
from tests.support.hook_plugin import HookPlugin
from tests.support.patience import PATIENCE_SECONDS


@plugin_api(1)
def missing(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    raise RuntimeError("no driver")


@plugin_api(1)
def absent(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    raise NotInstalled("install it")


@pytest.fixture
def core() -> Iterator[Core]:
    sources = [
        PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin)),
        PluginSource("MISSING", lambda: missing),
        PluginSource("ABSENT", lambda: absent),
    ]
    core = Core(sources, blob_key=b"key")
    yield core
    core.stop()


def test_a_start_that_a_mistake_in_the_configuration_ends_leaves_nothing() -> None:
    made: list[Plugin] = []

    @plugin_api(1)
    def kept(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
        made.append(HookPlugin(name, services, config))
        return made[0]

    sources = [
        PluginSource("KEPT", lambda: kept),
        PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin), {"NUM_STREAM": "1"}),
    ]
    with no_leaks(), pytest.raises(NotFound) as caught:
        Core(sources, blob_key=b"key")
    assert caught.value.field == "plugins.HOOK.config['NUM_STREAM']"
    assert made[0].names() == ["KEPT"]  # it is in no metric any more


def load(core: Core, device: str, config: Mapping[str, str] | None = None) -> None:
    request = LoadRequest("m", DeviceName.parse(device), config or {})
    core.load_network(request, lambda: networks.add().network).result(PATIENCE_SECONDS)


def test_devices_are_up_by_the_names_that_their_metrics_have(core: Core) -> None:
    assert core.devices_up() == {"HOOK.0": True, "HOOK.1": True, "MISSING": False}
    reasons = core.plugins.reasons(full=True)
    assert reasons == {"MISSING": "RuntimeError: no driver", "ABSENT": "install it"}
    counted = numbers(core.counters.snapshot(), families.DEVICE_ACCEPTED)
    assert {device for device, _ in counted} == {"HOOK.0", "HOOK.1"}


def test_one_device_of_a_type_may_be_down(core: Core) -> None:
    core.states.set("HOOK.1", DeviceState.DOWN, "it fell off the bus")
    assert core.devices_up() == {"HOOK.0": True, "HOOK.1": False, "MISSING": False}
    core.states.set("HOOK", DeviceState.RESTARTING)
    assert not any(core.devices_up().values())


def test_an_outage_is_counted_once_however_long_a_device_tries_to_come_back(core: Core) -> None:
    def counted() -> list[float | object]:
        return list(numbers(core.device_outages(), families.DEVICE_OUTAGES).values())

    assert counted() == [0, 0, 0]  # a device that never started has not gone down
    for state in (DeviceState.RESTARTING, DeviceState.DOWN, DeviceState.RESTARTING):
        core.states.set("HOOK", state, "its process ended")
    assert counted() == [1, 1, 0]
    core.states.set("HOOK", DeviceState.UP)
    core.states.set("HOOK", DeviceState.RESTARTING)
    assert counted() == [2, 2, 0]


def test_an_outage_of_one_device_of_a_type_is_its_own(core: Core) -> None:
    for state in (DeviceState.UP, DeviceState.DOWN):
        core.states.set("HOOK.1", state)
    assert numbers(core.device_outages(), families.DEVICE_OUTAGES) == {
        ("HOOK.0",): 0,
        ("HOOK.1",): 1,
        ("MISSING",): 0,
    }


@pytest.mark.parametrize(("device", "label"), [("HOOK", "HOOK.0"), ("HOOK.1", "HOOK.1")])
def test_a_network_is_counted_under_the_device_that_runs_it(
    core: Core, device: str, label: str
) -> None:
    load(core, device)

    def counted() -> list[tuple[str, ...]]:
        return list(numbers(core.counters.snapshot(), families.NETWORK_ACCEPTED))

    assert counted() == [("m", "1", label)]
    core.unload_network("m").result(PATIENCE_SECONDS)
    assert counted() == []


@pytest.mark.parametrize("key", ["DEVICE_ID", "HOOK.DEVICE_ID", "HOOK.1.DEVICE_ID"])
def test_a_device_id_beside_another_one_in_the_name_is_refused(core: Core, key: str) -> None:
    with pytest.raises(InvalidArgument, match="and DEVICE_ID is '0'") as caught:
        load(core, "HOOK.1", {key: "0"})
    assert caught.value.field == "config['DEVICE_ID']"
    assert core.networks.entries() == []
    load(core, "HOOK.1", {key: "1"})


def test_a_load_resolves_the_name_of_its_device_once(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved: list[DeviceName] = []

    def count(device: DeviceName, *more: Any) -> DeviceName:
        resolved.append(device)
        return resolve(device, *more)

    monkeypatch.setattr("headrace.runtime.core.resolve", count)
    load(core, "HOOK.1", {})
    assert resolved == [DeviceName.parse("HOOK.1")]


def test_an_exported_network_goes_to_the_device_that_is_named(core: Core) -> None:
    load(core, "HOOK", {"DEVICE_ID": "0"})
    blob = b"".join(core.export_network("m"))
    entry = core.import_network("copy", "HOOK.1", {}, blob, replace=False).result(PATIENCE_SECONDS)
    assert entry.device == "HOOK.1"


@pytest.mark.parametrize(
    ("key", "value"),
    [("QUEUE_CAPACITY", "1"), ("HOOK.QUEUE_CAPACITY", "1"), ("HOOK.CPU_BIND_THREAD", "YES")],
)
def test_a_key_of_the_device_is_refused_at_load_however_it_is_written(
    core: Core, key: str, value: str
) -> None:
    with pytest.raises(InvalidArgument, match="SetConfig on HOOK"):
        load(core, "HOOK", {key: value})
    assert core.networks.entries() == []


def test_a_server_alone_says_that_a_number_of_replicas_has_no_effect(core: Core) -> None:
    for value, told in (("2", True), ("0", False), ("ALL", False)):
        name = f"n{value}"
        request = LoadRequest(name, DeviceName.parse("HOOK"), {"REPLICAS": value})
        entry = core.load_network(request, lambda: networks.add().network).result(PATIENCE_SECONDS)
        assert entry.executable is not None
        assert any("REPLICAS has no effect" in each for each in entry.executable.notes) is told
        assert "REPLICAS" not in entry.executable.config.to_strings()


@pytest.mark.parametrize(("key", "value"), [("HOOK.REPLICAS", "2"), ("REPLICAS", "-1")])
def test_a_number_of_replicas_is_checked(core: Core, key: str, value: str) -> None:
    request = LoadRequest("n", DeviceName.parse("HOOK"), {key: value})
    with pytest.raises(InvalidArgument, match="REPLICAS") as caught:
        core.load_network(request, lambda: networks.add().network).result(PATIENCE_SECONDS)
    assert caught.value.field == f"config[{key!r}]"


def test_the_model_of_a_network_that_the_cache_knows_leaves_memory_when_it_is_loaded(
    tmp_path: Path,
) -> None:
    cache = NetworkCache(tmp_path, b"k" * 32, 2**30)
    core = Core(
        [PluginSource("HOOK", lambda: plugin_api(1)(HookPlugin))], blob_key=b"k", cache=cache
    )
    data = networks.add().network.to_bytes()

    def loaded(name: str) -> Network:
        request = LoadRequest(name, DeviceName.parse("HOOK"))
        load = core.load_network(request, lambda: core.models.from_bytes(data))
        given: Network = load.result(PATIENCE_SECONDS).record.given
        return given

    try:
        assert (loaded("first").is_read, loaded("copy").is_read) == (True, False)
        blob = b"".join(core.export_network("copy"))
        imported = core.import_network("again", "HOOK", {}, blob, replace=False)
        again: Network = imported.result(PATIENCE_SECONDS).record.given
        assert again.to_bytes() == data
    finally:
        core.stop()
