"""OPENVINO starts OpenVINO when something needs it, once, and says so where it cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.plugins.openvino.backend.compiler import Compiler
from headrace.plugins.openvino.claims import allowed
from headrace.plugins.openvino.compiling import CompilingPlugin
from headrace.plugins.openvino.executable_network import OpenVinoNetwork
from headrace.plugins.openvino.plugin import OpenVinoPlugin
from headrace.plugins.openvino.start import FirstUse, installed_version, start_openvino
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import factory_source, installed_plugins
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceEvent, DeviceState
from headrace.runtime.errors import HeadraceError, NotInstalled, Unavailable
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.runtime.isolation.server.process import WorkerProcess
from headrace.runtime.loading.plugin_registry import PluginRegistry
from headrace.testing import networks
from headrace.testing.case import network_of
from headrace.testing.infer_request import InferRequest
from headrace.testing.occupied import eventually
from headrace.testing.services import services
from tests.support.patience import PATIENCE_SECONDS

_CRASHING = "tests.support.crashing_device"


@pytest.fixture
def offered() -> Iterator[Services]:
    with services([installed_plugins()["CPU"]]) as made:
        yield made


class Starts:
    """Counts starts, of which each fails while there is a `reason`."""

    def __init__(self, reason: str = "") -> None:
        self.count = 0
        self._reason = reason

    def __call__(self) -> Compiler:
        self.count += 1
        if self._reason:
            raise Unavailable(self._reason)
        return start_openvino()


def standing_alone(offered: Services, config: Mapping[str, str], start: Starts) -> OpenVinoPlugin:
    """The device in this process."""
    compiling = CompilingPlugin("OPENVINO", offered, config, start)
    return OpenVinoPlugin("OPENVINO", offered, config, compiling)


def test_what_is_not_installed_is_told_with_the_remedy() -> None:
    with pytest.raises(NotInstalled, match="not installed; install headrace with its extra"):
        installed_version("no_such_package")


def test_a_library_without_its_package_has_no_version_to_tell() -> None:
    with pytest.raises(Unavailable, match="without its package"):
        installed_version("json")


def test_a_list_that_another_version_was_tried_for_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start_openvino()
    assert not caplog.messages
    monkeypatch.setattr(allowed, "VERSION", "2025.1.0")
    start_openvino()
    assert "tried with OpenVINO 2025.1.0" in caplog.messages[0]


def test_asking_an_idle_device_for_configuration_and_metric_names_starts_nothing(
    offered: Services,
) -> None:
    starts = Starts("not wanted")
    plugin = standing_alone(offered, {"NUM_STREAMS": "2"}, starts)
    plugin.announce()
    assert plugin.get_config("NUM_STREAMS") == 2
    assert "FULL_DEVICE_NAME" in plugin.metrics()
    assert plugin.get_metric("RANGE_FOR_ASYNC_INFER_REQUESTS") == (1, 2, 1)
    assert plugin.backend_version.startswith("OpenVINO 20")
    assert plugin.names() == ["OPENVINO"]
    assert starts.count == 0


def test_the_first_load_starts_it_and_shows_its_devices(offered: Services) -> None:
    starts = Starts()
    plugin = standing_alone(offered, {}, starts)
    plugin.announce()
    plugin.load_network(Load(networks.add().network)).close()
    assert starts.count == 1
    assert plugin.names() == [f"OPENVINO.{device}" for device in plugin.device_ids()]


def test_what_only_the_library_can_judge_starts_it_at_once(offered: Services) -> None:
    with pytest.raises(Unavailable, match="no driver"):
        standing_alone(offered, {"DEVICE_ID": "GPU.7"}, Starts("no driver"))


def test_a_start_that_fails_takes_the_device_down_with_its_reason(offered: Services) -> None:
    heard: list[DeviceEvent] = []
    offered.states.subscribe(lambda each: None if each.device == "CPU" else heard.append(each))
    starts = Starts("OpenVINO finds no device on this machine")
    plugin = standing_alone(offered, {}, starts)
    for _ in range(2):
        with pytest.raises(Unavailable, match="finds no device"):
            plugin.load_network(Load(networks.add().network))
    assert starts.count == 1
    assert [(each.device, each.state) for each in heard] == [("OPENVINO", DeviceState.DOWN)]
    assert heard[0].reason == "OpenVINO finds no device on this machine"


def test_many_at_once_start_it_once_and_all_wait() -> None:
    gate, starting = threading.Event(), threading.Event()
    compiler = start_openvino()
    starts: list[int] = []

    def start() -> Compiler:
        starts.append(1)
        starting.set()
        gate.wait()
        return compiler

    told: list[Compiler] = []
    use = FirstUse(start, told.append, lambda _: None)
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(use.get) for _ in range(4)]
        starting.wait()
        assert use.made() is None
        gate.set()
        assert [each.result() for each in made] == [compiler] * 4
    assert (len(starts), told) == (1, [compiler])


def test_it_keeps_little_code_of_operations_whose_networks_are_gone(
    offered: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")  # a forked process shows the environment of another
    with apart(offered) as plugin:
        network = plugin.load_network(Load(networks.add().network))
        assert isinstance(plugin._compiling, IsolatedPlugin)
        environment = Path(f"/proc/{plugin._compiling._host.worker().pid}/environ").read_bytes()
        assert b"ONEDNN_PRIMITIVE_CACHE_CAPACITY=128" in environment.split(b"\0")
        network.close()


@contextmanager
def apart(offered: Services, config: Mapping[str, str] | None = None) -> Iterator[OpenVinoPlugin]:
    """The device with a process of its own for OpenVINO."""
    registry = PluginRegistry()
    source = factory_source("OPENVINO", "headrace.plugins.openvino:create_plugin")
    registry.start([source.configured("OPENVINO", config or {})], offered)
    plugin = registry.plugin("OPENVINO")
    assert isinstance(plugin, OpenVinoPlugin)
    plugin.announce()
    try:
        yield plugin
    finally:
        registry.close()


def is_running(plugin: OpenVinoPlugin) -> bool:
    assert isinstance(plugin._compiling, IsolatedPlugin)
    return plugin._compiling._host._worker is not None


def test_its_process_starts_when_something_needs_it(offered: Services) -> None:
    with apart(offered, {"NUM_STREAMS": "2"}) as plugin:
        plugin.set_config({"PERF_COUNT": "YES"})
        assert plugin.get_config("NUM_STREAMS") == 2
        assert plugin.get_config("ISOLATION") == "PROCESS"
        assert "FULL_DEVICE_NAME" in plugin.metrics()
        assert plugin.backend_version.startswith("OpenVINO 20")
        assert plugin.names() == ["OPENVINO"]
        assert plugin.memory_bytes("CPU") == 0
        assert not is_running(plugin)
        network = plugin.load_network(Load(networks.add().network))
        assert is_running(plugin)
        assert plugin.names() == [f"OPENVINO.{device}" for device in plugin.device_ids()]
        assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 2
        assert plugin.get_metric("RANGE_FOR_ASYNC_INFER_REQUESTS") == (1, 2, 1)
        network.close()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"NUM_STREAM": "1"}, "did you mean 'NUM_STREAMS'"),
        ({"NUM_STREAMS": "-1"}, "NUM_STREAMS cannot be '-1'"),
        ({"DEVICE_ID": "GPU.77"}, "unknown DEVICE_ID 'GPU.77'"),
    ],
)
def test_a_mistake_in_its_configuration_ends_the_start_though_it_starts_late(
    offered: Services, config: Mapping[str, str], message: str
) -> None:
    with pytest.raises(HeadraceError, match=message), apart(offered, config):
        pass


@pytest.mark.long
@pytest.mark.usefixtures("openvino_is_faster")
def test_cpu_answers_when_its_process_ends_until_the_shape_is_compiled_again(
    offered: Services,
) -> None:
    text = "f (float[N,M] x) => (float[N,M] y) { y = Neg(x) }"
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with apart(offered) as plugin:
        network = plugin.load_network(Load(network_of(text)))
        assert isinstance(network, OpenVinoNetwork)

        def is_right() -> bool:
            found: Any = InferRequest(network).infer({"x": x})["y"]
            return np.array_equal(found, -x)

        def runs_on_openvino() -> bool:
            assert is_right()
            plugin._compiles.wait(network)
            return [each.device for each in network.shapes()] == ["OPENVINO.CPU"]

        eventually(runs_on_openvino, "OpenVINO was to run the shape")
        assert isinstance(plugin._compiling, IsolatedPlugin)
        worker = plugin._compiling._host.worker()
        worker.kill()
        worker.ended.wait(PATIENCE_SECONDS)
        assert is_right()
        eventually(runs_on_openvino, "the shape was to be compiled again")
        network.close()


def test_a_first_worker_that_is_killed_is_started_anew_for_the_next_that_needs_it(
    offered: Services,
) -> None:
    doomed = [True]

    def launch(device: str) -> WorkerProcess:
        worker = WorkerProcess(device)
        if doomed:
            doomed.clear()
            worker.kill()
        return worker

    path = f"{_CRASHING}:create_late"
    stub = factory_source("LATE", path).load()("LATE", offered, {})
    plugin = IsolatedPlugin("LATE", offered, {}, path, stub=stub, launch=launch)
    with pytest.raises(Unavailable, match="worker process of device LATE"):
        plugin.query_network(networks.add().network, {})
    assert plugin.query_network(networks.add().network, {}).unsupported == []
    plugin.close()


def test_a_reason_that_the_plugin_has_in_its_process_takes_the_device_down_for_good(
    offered: Services,
) -> None:
    heard: list[DeviceEvent] = []
    offered.states.subscribe(lambda each: None if each.device == "CPU" else heard.append(each))
    stub = factory_source("LATE", f"{_CRASHING}:create_late").load()("LATE", offered, {})
    path = f"{_CRASHING}:create_without_driver"
    plugin = IsolatedPlugin("LATE", offered, {}, path, stub=stub)
    for _ in range(2):
        with pytest.raises(Unavailable, match="an internal error") as caught:
            plugin.load_network(Load(networks.add().network))
        assert "libdriver.so.1 is not installed" in str(caught.value.__cause__)
    plugin.close()
    assert [(each.device, each.state) for each in heard] == [("LATE", DeviceState.DOWN)]
