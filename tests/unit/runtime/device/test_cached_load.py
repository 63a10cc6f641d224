"""Loads through the cache: never a wrong network, and never a failed load because of the cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.plugins import cpu, hetero
from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.errors import (
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    InvalidModel,
    NotFound,
    Unavailable,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.metrics.cache_counters import EVENTS, CacheEvent
from headrace.runtime.network.extension import read_functions
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing import networks
from headrace.testing.case import parse
from headrace.testing.counted import number
from headrace.testing.services import services
from tests.support import exporting_device
from tests.support.exporting_device import ExportingPlugin
from tests.support.hook_plugin import HookPlugin

_EXTENSION = parse(
    'm (float[2] x) => (float[2] y) { y = headrace.test.twice(x) } <domain: "headrace.test", '
    'opset_import: ["": 21]> twice (x) => (y) { y = Add(x, x) }'
)


@pytest.fixture
def cache(tmp_path: Path) -> NetworkCache:
    return NetworkCache(tmp_path, b"k" * 32, 2**20)


@pytest.fixture
def offered(cache: NetworkCache) -> Iterator[Services]:
    with services(cache=cache) as each:
        yield each


@pytest.fixture
def plugin(offered: Services) -> ExportingPlugin:
    return ExportingPlugin("STORED", offered, {})


@pytest.fixture
def network() -> Network:
    return networks.add().network


def events(cache: NetworkCache, device: str = "STORED") -> dict[CacheEvent, int]:
    counted = cache.counters.snapshot()
    found = {event: number(counted, family, device) for event, family in EVENTS.items()}
    return {event: int(count) for event, count in found.items() if count}


def entries(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def test_the_second_load_is_restored_and_says_so(
    plugin: ExportingPlugin, network: Network, cache: NetworkCache
) -> None:
    first = plugin.load_network(Load(network))
    second = plugin.load_network(Load(networks.add().network))
    assert first.get_metric("LOADED_FROM_CACHE") is False
    assert second.get_metric("LOADED_FROM_CACHE") is True
    assert len(plugin.compiled) == len(plugin.imported) == 1
    assert first.notes == second.notes == ()
    assert events(cache) == {"miss": 1, "hit": 1}


def test_without_a_cache_every_load_compiles(network: Network) -> None:
    with services() as without:
        plugin = ExportingPlugin("STORED", without, {})
        for _ in range(2):
            assert plugin.load_network(Load(network)).notes == ()
        assert len(plugin.compiled) == 2


def test_a_load_that_asks_for_a_cache_that_is_not_there_is_told(network: Network) -> None:
    with services() as without:
        made = ExportingPlugin("STORED", without, {}).load_network(
            Load(network, {"CACHE_DIR": "a"})
        )
        assert made.notes == ("not cached: the server has no --cache-dir",)


def test_an_empty_name_turns_the_cache_off_for_a_load_or_a_device(
    plugin: ExportingPlugin, network: Network, cache: NetworkCache, tmp_path: Path
) -> None:
    plugin.load_network(Load(network, {"CACHE_DIR": ""}))
    assert entries(tmp_path) == []
    plugin.set_config({"CACHE_DIR": ""})
    plugin.load_network(Load(network))
    assert entries(tmp_path) == []
    plugin.load_network(Load(network, {"CACHE_DIR": "team-a"}))
    assert [path.parent.name for path in entries(tmp_path)] == ["team-a"]
    assert len(plugin.compiled) == 3
    assert events(cache) == {"miss": 1}


@pytest.mark.parametrize("name", ["..", "/tmp", "a/b", "a\\b", ".hidden", "a\0b", "x" * 129])
def test_a_name_that_leads_elsewhere_is_refused(
    plugin: ExportingPlugin, network: Network, tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        plugin.load_network(Load(network, {"CACHE_DIR": name}))
    assert caught.value.field == "config['CACHE_DIR']"
    assert entries(tmp_path) == []


def test_folders_do_not_see_each_others_networks(plugin: ExportingPlugin, network: Network) -> None:
    for folder in ("team-a", "team-b", "team-a"):
        plugin.load_network(Load(network, {"CACHE_DIR": folder}))
    assert len(plugin.compiled) == 2
    assert len(plugin.imported) == 1


def test_a_device_that_exports_nothing_keeps_nothing_and_tells_who_asked(
    offered: Services, network: Network, cache: NetworkCache, tmp_path: Path
) -> None:
    plugin = HookPlugin("HOOK", offered, {})
    assert plugin.load_network(Load(network)).notes == ()
    asked = plugin.load_network(Load(network, {"CACHE_DIR": "a"}))
    assert asked.notes == ("not cached: HOOK exports nothing that would load faster",)
    assert entries(tmp_path) == []
    assert events(cache, "HOOK") == {"skipped": 2}


def test_a_network_that_cannot_be_exported_is_compiled_each_time(
    plugin: ExportingPlugin, network: Network, cache: NetworkCache, tmp_path: Path
) -> None:
    plugin.exports = lambda _: b""
    for _ in range(2):
        made = plugin.load_network(Load(network))
        assert made.notes == ("not cached: STORED exports nothing of this network",)
    assert entries(tmp_path) == []
    assert events(cache) == {"miss": 2}


def _planted(path: Path) -> None:
    path.write_bytes(b"compiled: whatever somebody else likes")


def _damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [_planted, _damaged, _directory])
def test_an_entry_that_is_not_trusted_costs_a_warning_and_compiling(
    plugin: ExportingPlugin,
    network: Network,
    cache: NetworkCache,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
) -> None:
    plugin.load_network(Load(network))
    (entry,) = entries(tmp_path)
    spoil(entry)
    made = plugin.load_network(Load(network))
    assert "compiled anew: the cache's entry was not used" in made.notes
    assert made.get_metric("LOADED_FROM_CACHE") is False
    assert plugin.imported == []
    assert events(cache)["refused"] == 1
    assert entry.name.removesuffix(".compiled") in caplog.text


def test_an_entry_that_was_not_trusted_is_replaced(
    plugin: ExportingPlugin, network: Network, tmp_path: Path
) -> None:
    plugin.load_network(Load(network))
    (entry,) = entries(tmp_path)
    _planted(entry)
    plugin.load_network(Load(network))
    assert plugin.load_network(Load(network)).loaded_from_cache


@pytest.mark.parametrize(
    ("error", "note", "level"),
    [
        (FailedPrecondition("another driver"), "another driver", "INFO"),
        (RuntimeError("no"), "the cache's entry was not used", "WARNING"),
    ],
)
def test_a_backend_that_does_not_take_an_entry_compiles(
    plugin: ExportingPlugin,
    network: Network,
    cache: NetworkCache,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    note: str,
    level: str,
) -> None:
    def refuse(_: bytes) -> None:
        raise error

    plugin.load_network(Load(network))
    plugin.takes = refuse
    caplog.set_level("INFO")
    made = plugin.load_network(Load(network))
    assert not made.loaded_from_cache
    assert made.notes == (f"compiled anew: {note}",)
    (logged,) = [each for each in caplog.records if "cache entry" in each.message]
    assert logged.levelname == level
    assert len(plugin.compiled) == 2
    assert events(cache) == {"miss": 2, "refused": 1}


def test_a_device_that_is_down_says_nothing_about_its_entries(
    plugin: ExportingPlugin, network: Network, cache: NetworkCache
) -> None:
    def down(_: bytes) -> None:
        raise Unavailable("the device is being started again")

    plugin.load_network(Load(network))
    plugin.takes = down
    with pytest.raises(Unavailable):
        plugin.load_network(Load(network))
    assert len(plugin.compiled) == 1
    assert events(cache) == {"miss": 1}
    plugin.takes = lambda _: None
    assert plugin.load_network(Load(network)).loaded_from_cache


def test_a_cache_that_cannot_be_written_to_costs_a_warning(
    plugin: ExportingPlugin,
    network: Network,
    cache: NetworkCache,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "default").write_bytes(b"no folder")
    made = plugin.load_network(Load(network))
    assert "not cached: the server could not keep it, its log says why" in made.notes
    assert events(cache)["write_failed"] == 1
    assert "was not cached" in caplog.text


def test_an_export_that_fails_does_not_fail_the_load(
    plugin: ExportingPlugin, network: Network, cache: NetworkCache, tmp_path: Path
) -> None:
    def fail(_: Network) -> bytes:
        raise RuntimeError("out of memory")

    plugin.exports = fail
    plugin.load_network(Load(network))
    assert entries(tmp_path) == []
    assert events(cache) == {"miss": 1, "write_failed": 1}


def test_a_device_that_cannot_say_what_it_is_loads_without_the_cache(
    plugin: ExportingPlugin,
    network: Network,
    cache: NetworkCache,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugin.capabilities = (object(),)  # type: ignore[assignment]  # as no device should
    plugin.load_network(Load(network))
    assert len(plugin.compiled) == 1
    assert events(cache) == {}
    assert "no key for the cache" in caplog.text


def test_a_mistake_of_the_callers_is_no_event_to_be_warned_of(
    plugin: ExportingPlugin, network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NotFound, match="DEVICE_ID"):
        plugin.load_network(Load(network, {"DEVICE_ID": "7"}))
    assert caplog.text == ""


def test_a_load_that_fails_leaves_no_entry(
    plugin: ExportingPlugin, network: Network, tmp_path: Path
) -> None:
    def fail(_: CancelToken) -> None:
        raise InvalidModel("no such thing", field="model")

    plugin.on_compile = fail
    with pytest.raises(InvalidModel, match="no such thing"):
        plugin.load_network(Load(network))
    assert entries(tmp_path) == []


def test_a_load_that_is_cancelled_leaves_no_entry_and_takes_none(
    plugin: ExportingPlugin, network: Network, tmp_path: Path
) -> None:
    plugin.on_compile = lambda token: token.cancel(Cancelled("nobody waits"))
    with pytest.raises(Cancelled):
        plugin.load_network(Load(network, token=CancelToken()))
    assert entries(tmp_path) == []
    plugin.on_compile = lambda _: None
    plugin.load_network(Load(network))
    token = CancelToken()

    def cancel(_: bytes) -> None:
        token.cancel(Cancelled("nobody waits"))
        raise FailedPrecondition("interrupted")

    plugin.takes = cancel
    with pytest.raises(Cancelled):
        plugin.load_network(Load(network, token=token))
    assert len(plugin.compiled) == 2, "and it is not compiled for nobody"


def test_an_extension_that_comes_while_a_network_is_compiled_keeps_it_from_being_cached(
    plugin: ExportingPlugin, network: Network, tmp_path: Path
) -> None:
    functions = read_functions(_EXTENSION.SerializeToString())
    plugin.on_compile = lambda _: plugin.add_extension(functions)
    plugin.load_network(Load(network))
    assert entries(tmp_path) == [], "which of the two it was compiled with cannot be told"
    plugin.on_compile = lambda _: None
    plugin.load_network(Load(network))
    assert len(entries(tmp_path)) == 1


def test_an_import_without_native_bytes_is_a_load(
    plugin: ExportingPlugin, network: Network, cache: NetworkCache
) -> None:
    plugin.load_network(Load(network))
    assert plugin.load_network(Load(network)).loaded_from_cache
    native = plugin.compiled[0].export()
    imported = plugin.load_network(Load(network, native=native))
    assert imported.restored
    assert not imported.loaded_from_cache
    assert events(cache) == {"miss": 1, "hit": 1}


def test_an_import_that_the_backend_does_not_take_is_compiled_and_says_why(
    plugin: ExportingPlugin, network: Network
) -> None:
    made = plugin.load_network(Load(network, native=b"of another device"))
    assert made.notes == ("compiled anew: these are not this device's bytes",)
    assert not made.restored


def test_devices_of_a_list_keep_their_parts(
    cache: NetworkCache, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    name = DeviceName.parse("HETERO:STORED,CPU")
    sources = [
        PluginSource("STORED", lambda: exporting_device.create_plugin),
        PluginSource("CPU", lambda: cpu.create_plugin),
    ]
    affinities = {"dense1": "STORED", "relu1": "STORED"}
    options = NetworkOptions(affinities=affinities, members=name.members)
    with services(sources, cache=cache) as offered:
        splitter = hetero.create_plugin("HETERO", offered, {})
        for _ in range(2):
            splitter.load_network(Load(networks.mlp().network, options=options)).close()
    stored = events(cache)
    assert stored["hit"] == stored["miss"] >= 1
    assert "write_failed" not in stored
    assert events(cache, "HETERO") == {"hit": 1, "miss": 1}
