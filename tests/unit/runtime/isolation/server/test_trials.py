"""Strangers' models are compiled first in workers that serve nobody."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import factory_source
from headrace.runtime.device.services import Services
from headrace.runtime.errors import Cancelled, EndedWorker, ResourceExhausted
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.isolation.server import process, trials
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.runtime.isolation.server.process import WorkerProcess
from headrace.runtime.loading.plugin_registry import PluginRegistry
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import Asker, asking
from headrace.testing.case import network_of, parse
from headrace.testing.leaks import no_leaks
from headrace.testing.occupied import eventually
from headrace.testing.services import services as real_services
from tests.support.crashing_device import CRASHING_LAYER, CRASHING_QUERY, HELD
from tests.support.patience import PATIENCE_SECONDS

EVE = Asker("eve", trusted=False)
BOB = Asker("bob", trusted=False)
_PATH = "tests.support.crashing_device:create_plugin"


@pytest.fixture
def services() -> Iterator[Services]:
    with no_leaks(), real_services() as offered:
        yield offered


def layer_called(name: str, operator: str = "Relu") -> Network:
    model = parse(f"g (float[n] x) => (float[n] y) {{ y = {operator}(x) }}")
    model.graph.node[0].name = name
    return network_of(model)


def test_a_strangers_models_end_no_worker_that_serves_and_then_the_stranger_is_refused(
    services: Services,
) -> None:
    with closing(IsolatedPlugin("FRAGILE", services, {}, _PATH)) as plugin:
        mine = plugin.load_network(Load(layer_called("mine")))
        serving = plugin._host.worker()
        with asking(EVE):
            for operator in ("Abs", "Neg"):
                with pytest.raises(EndedWorker, match="SIGSEGV"):
                    plugin.query_network(layer_called(CRASHING_QUERY, operator), {})
            with pytest.raises(EndedWorker, match="until the server is restarted"):
                plugin.query_network(layer_called("another name", "Neg"), {})
            with pytest.raises(EndedWorker, match="SIGSEGV"):
                plugin.load_network(Load(layer_called(CRASHING_LAYER, "Exp")))
            with pytest.raises(ResourceExhausted, match="have ended 3 worker processes"):
                plugin.query_network(layer_called("good", "Sqrt"), {})
        with asking(BOB):
            found = plugin.query_network(layer_called("good", "Sqrt"), {})
            plugin.load_network(Load(layer_called("good", "Sqrt"))).close()
        assert found.supported_layers == {"good": "FRAGILE"}
        assert plugin._host.worker() is serving
        assert not serving.ended.is_set()
        mine.close()


@pytest.mark.long
def test_whoever_has_left_holds_no_thread_and_no_worker(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE_SECONDS", 0.0)
    file, token = tmp_path / "held", CancelToken()
    file.touch()

    def load(plugin: IsolatedPlugin) -> None:
        with asking(EVE):
            plugin.load_network(Load(layer_called(f"{HELD}{file}"), token=token))

    with closing(IsolatedPlugin("FRAGILE", services, {}, _PATH)) as plugin:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(load, plugin)
            eventually(
                lambda: any(each.under_way for each in [*plugin._host.trials._busy]), "at work"
            )
            (worker,) = plugin._host.trials._busy
            token.cancel(Cancelled("the caller left"))
            with pytest.raises(Cancelled, match="the caller left"):
                asked.result(PATIENCE_SECONDS)
        assert worker.ended.wait(PATIENCE_SECONDS)
        assert file.exists()


def test_work_of_a_worker_that_takes_too_long_costs_it_its_life(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.runtime.isolation.server.process._PULSE_SECONDS", 0.05)
    file = tmp_path / "held"
    file.touch()
    with closing(IsolatedPlugin("FRAGILE", services, {}, _PATH)) as plugin:
        plugin._host.trials._seconds = 0.1
        with asking(EVE), pytest.raises(EndedWorker, match="it took too long"):
            plugin.load_network(Load(layer_called(f"{HELD}{file}")))


def test_a_device_in_the_servers_process_compiles_strangers_models_apart_first(
    services: Services,
) -> None:
    registry = PluginRegistry()
    registry.start([factory_source("FRAGILE", _PATH)], services)
    plugin = registry.plugin("FRAGILE")
    try:
        with asking(EVE):
            with pytest.raises(EndedWorker, match="SIGSEGV"):
                plugin.query_network(layer_called(CRASHING_QUERY, "Abs"), {})
            with pytest.raises(EndedWorker, match="SIGSEGV"):
                plugin.load_network(Load(layer_called(CRASHING_LAYER, "Neg")))
            assert plugin.query_network(layer_called("good"), {}).supported_layers
            plugin.load_network(Load(layer_called("good"))).close()
    finally:
        registry.close()


@pytest.mark.long
def test_a_changed_device_is_tried_anew(services: Services) -> None:
    with closing(IsolatedPlugin("FRAGILE", services, {}, _PATH)) as plugin, asking(BOB):
        plugin.query_network(layer_called("good"), {})
        before = plugin._host.trials._idle
        assert before is not None
        plugin.set_config({"PERF_COUNT": "YES"})
        assert before.ended.wait(PATIENCE_SECONDS)
        plugin.query_network(layer_called("good"), {})


@pytest.mark.long
def test_a_worker_that_starts_while_the_device_changes_is_not_used_again(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(IsolatedPlugin("FRAGILE", services, {}, _PATH)) as plugin:
        workers, started = plugin._host.trials._workers, []
        start = workers.start

        def start_and_change() -> WorkerProcess:
            started.append(start())
            plugin.set_config({"PERF_COUNT": "YES"})
            return started[-1]

        monkeypatch.setattr(workers, "start", start_and_change)
        with asking(EVE):
            for name in ("one", "other"):
                plugin.query_network(layer_called(name), {})
        assert len(started) == 2


@pytest.mark.long
def test_an_idle_worker_is_not_kept_for_ever(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "_IDLE_SECONDS", 0.0)
    with closing(IsolatedPlugin("FRAGILE", services, {}, _PATH)) as plugin, asking(BOB):
        plugin.query_network(layer_called("good"), {})
        eventually(lambda: plugin._host.trials._idle is None, "no idle worker")
