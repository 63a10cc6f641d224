"""The devices of one type as the metrics show them: names, gauges, and what networks hold."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.services import Services
from headrace.runtime.metrics import families
from headrace.testing.case import network_of, parse
from headrace.testing.counted import numbers
from headrace.testing.services import services
from tests.support.hook_plugin import HookPlugin

WEIGHT = np.zeros((16, 16), np.float32)


@pytest.fixture
def offered() -> Iterator[Services]:
    with services() as offered:
        yield offered


@pytest.fixture
def plugin(offered: Services) -> HookPlugin:
    return HookPlugin("HOOK", offered, {})


def load(plugin: HookPlugin, device_id: str = "") -> ExecutableNetwork:
    model = parse("m (float[N,16] x) => (float[N,16] y) { y = MatMul(x, w) }", {"w": WEIGHT})
    network = network_of(model)
    loaded = plugin.load_network(Load(network, {"DEVICE_ID": device_id}))
    plugin.compiled.clear()
    return loaded


def gauges(offered: Services) -> dict[str, dict[str, float]]:
    counted = offered.counters.snapshot()
    found: dict[str, dict[str, float]] = {
        device: {} for device, _ in numbers(counted, families.DEVICE_ACCEPTED)
    }
    for each in counted:
        if each.family.kind == "gauge" and isinstance(each.value, float):
            name = each.family.name.removeprefix("device_")
            found[each.labels[0]][name] = each.value
    return found


def test_an_announced_device_is_shown_before_its_first_network(
    plugin: HookPlugin, offered: Services
) -> None:
    plugin.announce()
    assert plugin.names() == ["HOOK.0", "HOOK.1"]
    assert gauges(offered)["HOOK.1"] == {"queue_capacity": 1024.0, "memory_bytes": 0.0}


def test_a_device_that_nobody_announced_is_shown_with_its_first_network(
    plugin: HookPlugin, offered: Services
) -> None:
    network = load(plugin)
    assert plugin.names() == ["HOOK.0"]
    assert gauges(offered)["HOOK.0"].keys() == {
        "queue_capacity",
        "queue_depth",
        "streams",
        "streams_busy",
        "memory_bytes",
    }
    network.close()


def test_a_device_holds_the_weights_of_its_open_networks(
    plugin: HookPlugin, offered: Services
) -> None:
    first, second, other = load(plugin), load(plugin), load(plugin, "1")
    held = {name: values["memory_bytes"] for name, values in gauges(offered).items()}
    assert held == {"HOOK.0": 2 * WEIGHT.nbytes, "HOOK.1": WEIGHT.nbytes}
    first.close()
    assert plugin.memory_bytes("0") == WEIGHT.nbytes
    second.close()
    other.close()
    assert (plugin.memory_bytes("0"), plugin.memory_bytes("1")) == (0, 0)


def test_a_network_that_nobody_closed_holds_nothing_once_it_is_gone(plugin: HookPlugin) -> None:
    load(plugin)
    gc.collect()
    assert plugin.memory_bytes("0") == 0


def test_what_a_driver_tells_is_shown_instead(
    plugin: HookPlugin, offered: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.announce()
    monkeypatch.setattr(plugin, "_memory_bytes", {"0": 7, "1": 11}.__getitem__)
    assert [each["memory_bytes"] for each in gauges(offered).values()] == [7, 11]


def test_a_plugin_that_is_closed_leaves_no_gauge(plugin: HookPlugin, offered: Services) -> None:
    load(plugin).close()
    plugin.close()
    assert gauges(offered) == {"HOOK.0": {}}
