"""Which networks run in a process beside the server, on the device all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.plugins import cpu
from headrace.plugins.cpu.plugin import CpuPlugin
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import Unavailable, UnsupportedLayers
from headrace.runtime.network.extension import read_functions
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import Asker, asking
from headrace.testing.case import network_of, parse
from headrace.testing.infer_request import InferRequest
from headrace.testing.occupied import eventually

_MS = "com.microsoft"
_X = np.array([[[2, 0], [0, -4]]], np.float32)
_INVERSE = np.array([[[0.5, 0], [0, -0.25]]], np.float32)
_LAYER = "g (float[1,2,2] x) => (float[1,2,2] y) {{ y = {}(x) }}"
_FUNCTION = (
    '<domain: "{}", opset_import: ["" : 18, "com.microsoft" : 1]> {} (x) => (y) {{ y = {}(x) }}'
)


@pytest.fixture
def plugin(offered: Services) -> Iterator[Plugin]:
    plugin = cpu.create_plugin("CPU", offered, {})
    yield plugin
    plugin.close()


def model(layer: str, *functions: str) -> onnx.ModelProto:
    found = parse("\n".join([_LAYER.format(layer), *functions]))
    del found.opset_import[:]
    for domain, version in (("", 18), (_MS, 1), ("mine", 1)):
        found.opset_import.add(domain=domain, version=version)
    return found


def network(layer: str, *functions: str) -> Network:
    return network_of(model(layer, *functions))


def load(plugin: Plugin, given: Network, **config: str) -> Any:
    return plugin.load_network(Load(given, config))


def answer(compiled: Any) -> Any:
    return InferRequest(compiled).infer({"x": _X})["y"]


def test_a_function_named_as_such_an_operator_is_still_a_function(
    offered: Services, plugin: Plugin
) -> None:
    """In the server, and in a process of its own."""
    given = network(f"{_MS}.Inverse", _FUNCTION.format(_MS, "Inverse", "Neg"))
    isolated = cpu.create_plugin("CPU", replace(offered, isolated=True), {})
    for device in (plugin, isolated):
        compiled = load(device, given)
        assert compiled.process == ""
        assert np.array_equal(answer(compiled), -_X)
        compiled.close()


def test_a_function_that_has_such_an_operator_runs_there(plugin: Plugin) -> None:
    compiled = load(plugin, network("mine.f", _FUNCTION.format("mine", "f", f"{_MS}.Inverse")))
    assert compiled.process == "worker"
    assert np.array_equal(answer(compiled), _INVERSE)
    compiled.close()


def test_one_that_a_client_has_given_the_device_does_too(plugin: Plugin) -> None:
    given = model("mine.f", _FUNCTION.format("mine", "f", f"{_MS}.Inverse"))
    plugin.add_extension(read_functions(given.SerializeToString()))
    assert not plugin.query_network(network("mine.f"), {}).unsupported
    compiled = load(plugin, network("mine.f"))
    assert compiled.process == "worker"
    assert np.array_equal(answer(compiled), _INVERSE)
    compiled.close()


def test_a_stranger_s_is_refused_because_others_share_the_process(plugin: Plugin) -> None:
    function = _FUNCTION.format("mine", "f", f"{_MS}.Inverse")
    for given in (network(f"{_MS}.Inverse"), network("mine.f", function)):
        with asking(Asker("somebody", trusted=False)):
            found = plugin.query_network(given, {})
            with pytest.raises(UnsupportedLayers, match="that such networks share"):
                load(plugin, given)
        assert [each.layer for each in found.unsupported] == ["y"]
        assert not found.supported_layers
        assert not plugin.query_network(given, {}).unsupported


def test_it_has_the_streams_and_the_place_of_the_device(plugin: Plugin) -> None:
    inside, apart = load(plugin, network("Relu")), load(plugin, network(f"{_MS}.Inverse"))
    assert inside.process == ""
    assert inside.executor is apart.executor
    assert inside.place.admission is apart.place.admission
    assert apart.place.device == "CPU.0"
    assert plugin.memory_bytes("0") == inside.network.weight_bytes
    for each in (inside, apart):
        each.close()


def test_what_is_set_for_the_device_counts_there_too(plugin: Plugin) -> None:
    apart = load(plugin, network(f"{_MS}.Inverse"))
    plugin.set_config({"NUM_STREAMS": "3"})
    assert apart.executor.streams == 3
    later = load(plugin, network(f"{_MS}.Inverse"))
    assert np.array_equal(answer(later), _INVERSE)
    for each in (apart, later):
        each.close()


def test_the_device_stays_up_while_the_process_starts_again(
    offered: Services, plugin: CpuPlugin
) -> None:
    apart, inside = load(plugin, network(f"{_MS}.Inverse")), load(plugin, network("Relu"))
    assert plugin._beside is not None
    plugin._beside._host.worker().kill("a test")

    def is_back() -> bool:
        try:
            return bool(np.array_equal(answer(apart), _INVERSE))
        except Unavailable:
            assert np.array_equal(answer(inside), np.maximum(_X, 0))
            return False

    eventually(is_back, "the network comes back")
    states = offered.states.current()
    assert "CPU" not in states or states["CPU"].state is DeviceState.UP
    for each in (apart, inside):
        each.close()


def test_no_process_starts_before_one_is_needed(plugin: CpuPlugin) -> None:
    compiled = load(plugin, network("Relu"))
    plugin.set_config({"NUM_STREAMS": "2"})
    assert plugin._beside is not None
    with pytest.raises(Unavailable):
        plugin._beside._host.worker()
    compiled.close()
