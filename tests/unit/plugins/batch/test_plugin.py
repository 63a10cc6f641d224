"""BATCH as a device: what it refuses, what it loads, and what it says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

from headrace.plugins import batch, cpu, template
from headrace.plugins.batch import hinted as hint_module
from headrace.plugins.batch import measurement
from headrace.plugins.batch.claims.trial import ROWS
from headrace.plugins.batch.executable_network import BatchNetwork
from headrace.plugins.batch.loading import BatchLoad
from headrace.plugins.batch.plugin import BatchPlugin
from headrace.plugins.cpu.plugin import CpuPlugin
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.compiled_plugin import CompiledPlugin, Support
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.errors import (
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    InvalidModel,
    NotFound,
    Unimplemented,
    UnsupportedLayers,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.loading.auto_batching import wanted
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import InputOptions, NetworkOptions
from headrace.testing import networks
from headrace.testing.case import Case, network_of, parse
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import InferRequest
from headrace.testing.occupied import occupied
from headrace.testing.services import services as real_services
from tests.support.hook_plugin import Copies
from tests.support.manual_clock import ManualClock
from tests.support.patience import PATIENCE_SECONDS


class FixedPlugin(CompiledPlugin):
    """Takes fixed sizes only. Copies its input."""

    def _support(self, network: Network, config: Configuration) -> Support:
        return lambda _: None

    def _compile(self, network: Network, config: Configuration, token: CancelToken) -> Copies:
        if not all(isinstance(size, int) for port in network.inputs for size in port.shape or ()):
            raise InvalidModel("sizes have to be fixed", field="model")
        return Copies(network, config, self.executor(config), streams=self.share(config))


@plugin_api(1)
def create_fixed(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return FixedPlugin(name, services, config)


SOURCES = (
    PluginSource("CPU", lambda: cpu.create_plugin, {"NUM_STREAMS": "2"}),
    PluginSource("TEMPLATE", lambda: template.create_plugin),
    PluginSource("FIXED", lambda: create_fixed),
)


@pytest.fixture
def services() -> Iterator[Services]:
    with real_services(SOURCES) as offered:
        yield offered


@pytest.fixture
def plugin(services: Services) -> BatchPlugin:
    made = batch.create_plugin("BATCH", services, {})
    assert isinstance(made, BatchPlugin)
    return made


def on(device: str) -> NetworkOptions:
    return NetworkOptions(members=DeviceName.parse(device).members)


def load(
    plugin: Plugin, case: Case, device: str = "BATCH:CPU(4)", **config: str
) -> ExecutableNetwork:
    return plugin.load_network(Load(case.network, config, on(device)))


# -- nonsense --


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("BATCH:[BATCH:CPU(4)](8)", "would batch requests twice"),
        ("BATCH:[MULTI:CPU,TEMPLATE](8)", r"MULTI:\[BATCH:CPU\(8\)\]"),
        ("BATCH:[AUTO:CPU](8)", "into the list of AUTO"),
        ("BATCH:AUTO(8)", "into the list of AUTO"),
        ("BATCH:[HETERO:[MULTI:CPU],TEMPLATE](8)", "into the list of MULTI"),
        ("BATCH:CPU(1)", "joins no requests"),
    ],
)
def test_nonsense_is_refused_by_name(plugin: Plugin, device: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason) as refused:
        load(plugin, networks.mlp(), device)
    assert refused.value.field == "device"


def test_batch_alone_asks_for_a_device(plugin: Plugin) -> None:
    with pytest.raises(InvalidArgument, match=r"as BATCH:CPU\(8\)"):
        plugin.load_network(Load(networks.mlp().network))


def test_a_size_of_nothing_is_no_device_name() -> None:
    with pytest.raises(InvalidArgument, match="count from 1"):
        DeviceName.parse("BATCH:CPU(0)")


def test_an_unknown_key_or_owner_is_refused(plugin: Plugin) -> None:
    with pytest.raises(NotFound, match="AUTO_BATCH_TIMEOUT"):
        load(plugin, networks.mlp(), AUTO_BATCH_TIME="1")
    with pytest.raises(NotFound, match="TEMPLATE"):
        load(plugin, networks.mlp(), **{"TEMPLATE.NUM_STREAMS": "1"})


def test_it_takes_no_extensions(plugin: Plugin) -> None:
    with pytest.raises(Unimplemented, match="devices of its list"):
        plugin.add_extension([])


# -- loads --


@pytest.mark.parametrize(
    "device", ["BATCH:CPU(4)", "BATCH:CPU", "BATCH:CPU.0(3)", "BATCH:TEMPLATE(2)"]
)
def test_requests_run_together_and_give_what_they_give_apart(plugin: Plugin, device: str) -> None:
    case = networks.mlp()
    loaded = load(plugin, case, device)
    requests = [InferRequest(loaded) for _ in range(9)]
    for request in requests:
        request.start_async(case.inputs)
    for request in requests:
        assert_same_outputs(request.result(PATIENCE_SECONDS), case.expected(), 1e-5)
    loaded.close()


def test_it_says_how_it_knows_that_rows_stay_apart(plugin: Plugin) -> None:
    loaded = load(plugin, networks.mlp())
    assert loaded.notes == (
        "requests run together, up to 4 rows: each row gave the same alone and among others",
    )
    loaded.close()


# The networks take float[N,4] x and give float[N,4] y; v is float[2,4], w float[4,4].
APART = {
    "elementwise with a constant": "c = Constant<value_floats = [1.0,2.0,3.0,4.0]>() y = Mul(x, c)",
    "matrix": "y = MatMul(x, w)",
    "norm": "y = Softmax<axis = -1>(x)",
    "transpose there and back": "t = Transpose<perm = [1,0]>(x) s = Relu(t) y = Transpose(s)",
    "merge and part": """
        three = Constant<value = int64[3] {-1, 2, 2}>() four = Constant<value = int64[2] {-1, 4}>()
        a = Reshape(x, three) b = Transpose<perm = [0,2,1]>(a) y = Reshape(b, four)""",
    "rows merged into tokens": """
        flat = Constant<value = int64[2] {-1, 2}>() back = Constant<value = int64[2] {-1, 4}>()
        a = Reshape(x, flat) b = Softmax<axis = 1>(a) y = Reshape(b, back)""",
    "reduce the features": """
        axes = Constant<value = int64[1] {1}>() m = ReduceMean(x, axes) y = Sub(x, m)""",
    "shape of the batch": "s = Shape(x) t = Relu(x) y = Reshape(t, s)",
    "a constant repeated for each row": """
        s = Shape(x) one = Constant<value = float[1,1] {2.0}>() e = Expand(one, s) y = Add(x, e)""",
    "one row cut to all of it": """
        from = Constant<value = int64[1] {0}>() to = Constant<value = int64[1] {9999}>()
        over = Constant<value = int64[1] {0}>() r = Relu(x) y = Slice(r, from, to, over)""",
    "split": "a, b = Split<axis = 1, num_outputs = 2>(x) y = Concat<axis = 1>(b, a)",
    "a number that all sizes give": "s = Size(x) n = Cast<to = 1>(s) e = Erf(n) y = Mul(x, e)",
}
MIXED = {
    "softmax over the batch": "y = Softmax<axis = 0>(x)",
    "mean": "axes = Constant<value = int64[1] {0}>() m = ReduceMean(x, axes) y = Sub(x, m)",
    "largest of all": "m = ReduceMax(x) y = Sub(x, m)",
    "running sum": "zero = Constant<value = int64 {0}>() y = CumSum(x, zero)",
    "rows times rows": "t = Transpose(x) a = MatMul(x, t) y = MatMul(a, x)",
    "sum over rows": "t = Transpose(x) y = MatMul(t, x)",
    "one row": "zero = Constant<value = int64 {0}>() r = Gather(x, zero) y = Add(x, r)",
    "joined with a constant": "y = Concat<axis = 0>(x, v)",
    "training": """one = Constant<value_floats = [1.0,1.0,1.0,1.0]>()
        y, m, u = BatchNormalization<training_mode = 1>(x, one, one, one, one)""",
    "scale": "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)",
    "constant of several rows": "y = Add(x, v)",
    "the batch nowhere": "one = Constant<value = int64[2] {4, -1}>() y = Reshape(x, one)",
    "divided by their number": "s = Size(x) n = Cast<to = 1>(s) y = Div(x, n)",
}


def of_rows(text: str) -> Network:
    weights = {"w": np.eye(4, dtype=np.float32), "v": np.ones((2, 4), np.float32)}
    model = parse(f"m (float[N,4] x) => (float[N,4] y) {{ {text} }}", weights)
    return network_of(model)


@pytest.mark.parametrize("kind", APART)
def test_rows_that_stay_apart_run_together(plugin: Plugin, kind: str) -> None:
    loaded = plugin.load_network(Load(of_rows(APART[kind]), options=on("BATCH:CPU(4)")))
    loaded.close()


@pytest.mark.parametrize("kind", MIXED)
def test_rows_that_meet_are_refused(plugin: Plugin, kind: str) -> None:
    with pytest.raises(FailedPrecondition):  # CPU does not train
        plugin.load_network(Load(of_rows(MIXED[kind]), options=on("BATCH:CPU(4)")))


def test_a_network_that_gives_the_same_for_all_rows_is_refused(plugin: Plugin) -> None:
    text = "zero = Constant<value = float {0.0}>() y = Mul(x, zero)"
    with pytest.raises(FailedPrecondition, match="a trial could not tell whether its rows stay"):
        plugin.load_network(Load(of_rows(text), options=on("BATCH:CPU(4)")))


def test_what_the_device_does_not_support_is_refused_as_by_the_device(plugin: Plugin) -> None:
    text = """m (float[N,4] x) => (float[N,4] y) { [strange] y = headrace.test.Strange(x) }"""
    with pytest.raises(UnsupportedLayers, match="strange"):
        plugin.load_network(Load(network_of(text), options=on("BATCH:CPU(4)")))


def test_a_device_of_fixed_sizes_gets_padded_batches(plugin: Plugin) -> None:
    text = "m (float[N,4] x) => (float[N,4] y) { y = Identity(x) }"
    loaded = plugin.load_network(Load(network_of(text), options=on("BATCH:FIXED(4)")))
    assert "padded to 4 rows" in loaded.notes[1]
    assert "sizes have to be fixed" in loaded.notes[1]
    outputs = InferRequest(loaded).infer({"x": np.ones((3, 4), np.float32)})
    assert np.asarray(outputs["y"]).tolist() == [[1.0] * 4] * 3
    loaded.close()


def test_preprocessing_is_part_of_what_runs_together(plugin: Plugin) -> None:
    case = networks.image()
    inputs = {"x": InputOptions(layout="NHWC", network_layout="NCHW")}
    options = NetworkOptions(inputs, members=DeviceName.parse("BATCH:CPU(4)").members)
    loaded = plugin.load_network(Load(case.network, options=options))
    x = np.asarray(case.inputs["x"]).transpose(0, 2, 3, 1)
    assert_same_outputs(InferRequest(loaded).infer({"x": x}), case.expected(), 1e-4)
    loaded.close()


def test_a_profile_is_in_terms_of_the_network_as_loaded(plugin: Plugin) -> None:
    case = networks.mlp()
    loaded = load(plugin, case, PERF_COUNT="YES")
    request = InferRequest(loaded)
    request.infer(case.inputs)
    origins = {name for layer in request.performance_counts for name in layer.origins}
    assert {"dense1", "dense2", "dense3"} <= origins
    assert {layer.device for layer in request.performance_counts} == {"CPU.0"}
    loaded.close()


def test_a_query_is_the_other_devices(plugin: Plugin) -> None:
    case = networks.mlp()
    asked = plugin.query_network(case.network, {}, on("BATCH:CPU(4)"))
    assert set(asked.supported_layers) == set(case.network.layer_names)
    assert set(asked.supported_layers.values()) == {"CPU"}


MEETING: dict[str, tuple[str, list[str]]] = {
    "a layer": ("(float[N,3] x) => (int64[2,M] z) { y = Relu(x) z = NonZero(y) }", ["y"]),
    "inputs": ("(float[N,3] x, float[1,3] w) => (float[N,3] z) { z = Add(x, w) }", []),
    "a fixed size": ("(float[2,3] x) => (float[2,3] z) { y = Relu(x) z = Neg(y) }", []),
    "an output": ("(float[N] x) => (float[1] z) { z = Constant<value_floats=[1.0]>() }", []),
    "a trial": ("(float[N,4] x) => (float[N,4] z) { y = Relu(x) z = Softmax<axis=0>(y) }", []),
}


@pytest.mark.parametrize("kind", MEETING)
def test_a_query_says_what_a_load_refuses(plugin: Plugin, kind: str) -> None:
    text, kept = MEETING[kind]
    network = network_of(f"g {text}")
    asked = plugin.query_network(network, {}, on("BATCH:CPU(4)"))
    with pytest.raises(FailedPrecondition) as caught:
        plugin.load_network(Load(network, options=on("BATCH:CPU(4)")))
    assert asked.unsupported
    assert {each.reason for each in asked.unsupported} == {caught.value.message}
    assert sorted(asked.supported_layers) == kept


def test_an_exported_network_is_loaded_anew(plugin: Plugin) -> None:
    case = networks.mlp()
    again = plugin.load_network(Load(case.network, options=on("BATCH:CPU(4)")))
    assert isinstance(again, BatchNetwork)
    again.close()


def test_a_load_that_is_cancelled_leaves_nothing(plugin: Plugin) -> None:
    token = CancelToken()
    token.cancel(Cancelled("nobody waits"))
    with pytest.raises(Cancelled):
        plugin.load_network(Load(networks.mlp().network, options=on("BATCH:CPU(4)"), token=token))


def test_a_load_that_is_cancelled_at_its_very_end_leaves_nothing(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, made = CancelToken(), []
    load_it = BatchLoad.anew

    def cancel_then(load: BatchLoad) -> LoadResult:
        made.append(load_it(load))
        token.cancel(Cancelled("nobody waits"))
        return made[0]

    monkeypatch.setattr(BatchLoad, "anew", cancel_then)
    with pytest.raises(Cancelled):
        plugin.load_network(Load(networks.mlp().network, options=on("BATCH:CPU(4)"), token=token))
    (batched,) = (each.network for each in made)
    assert isinstance(batched, BatchNetwork)
    assert batched.inner._closed


# -- what it says of itself --


def test_a_network_shows_what_was_chosen(plugin: Plugin) -> None:
    loaded = load(plugin, networks.mlp(), "BATCH:TEMPLATE(8)", AUTO_BATCH_TIMEOUT="50")
    assert loaded.get_metric("BATCH_SIZE") == 8
    assert loaded.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 8
    assert loaded.config.to_strings()["AUTO_BATCH_TIMEOUT"] == "50"
    loaded.set_config({"AUTO_BATCH_TIMEOUT": "20", "EXECUTION_TIMEOUT": "7"})
    assert isinstance(loaded, BatchNetwork)
    assert loaded.inner.config.to_strings()["EXECUTION_TIMEOUT"] == "7"
    loaded.close()


def test_the_callers_own_number_of_requests_bounds_size_and_optimum(plugin: Plugin) -> None:
    loaded = load(plugin, networks.mlp(), "BATCH:CPU", PERFORMANCE_HINT_NUM_REQUESTS="3")
    assert loaded.get_metric("BATCH_SIZE") == 3
    assert loaded.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 3
    loaded.close()


def test_where_the_device_loses_streams_fewer_batches_run_at_once(
    plugin: BatchPlugin, services: Services
) -> None:
    network = load(plugin, networks.mlp())
    assert isinstance(network, BatchNetwork)
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 8
    services.devices.plugin("CPU").set_config({"NUM_STREAMS": "1"})
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 4
    assert network.collector._scheduler.slots == 1
    network.close()


def test_it_works_while_the_other_device_does(plugin: Plugin) -> None:
    loaded = load(plugin, networks.mlp())
    assert [loaded.works({"CPU.0": up}) for up in (True, False)] == [True, False]
    loaded.close()


def test_execution_devices_are_the_other_devices(plugin: Plugin) -> None:
    loaded = load(plugin, networks.mlp())
    assert loaded.get_metric("EXECUTION_DEVICES") == ["CPU.0"]
    assert {layer.device for layer in loaded.layers()} == {"CPU.0"}
    loaded.close()


# -- hints --


@pytest.mark.parametrize(
    ("device", "config", "expected"),
    [
        ("CPU", {"PERFORMANCE_HINT": "THROUGHPUT"}, True),
        ("CPU", {"PERFORMANCE_HINT": "THROUGHPUT", "ALLOW_AUTO_BATCHING": "NO"}, False),
        ("CPU", {"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": "1"}, False),
        ("CPU", {"PERFORMANCE_HINT": "THROUGHPUT", "EXCLUSIVE_ASYNC_REQUESTS": "YES"}, False),
        ("CPU", {"PERFORMANCE_HINT": "LATENCY"}, False),
        ("CPU", {}, False),
        ("MULTI:CPU", {"PERFORMANCE_HINT": "THROUGHPUT"}, False),
    ],
)
def test_batches_are_for_throughput_where_allowed(
    services: Services, device: str, config: dict[str, str], expected: bool
) -> None:
    cpu_plugin = services.devices.plugin("CPU")
    assert wanted(DeviceName.parse(device), cpu_plugin, config) is expected


def hinted(
    plugin: BatchPlugin,
    network: Network,
    device: str = "CPU",
    made: list[ExecutableNetwork] | None = None,
    **more: str,
) -> ExecutableNetwork:
    """
    Args:
        made: takes the network that the device has by itself.
    """
    name = DeviceName.parse(device)
    found = plugin.services.devices.plugin(name.type)
    load = found.load_network

    def load_network(asked: Load) -> ExecutableNetwork:
        plain = load(asked)
        if made is not None:
            made.append(plain)
        return plain

    with mock.patch.object(found, "load_network", load_network):
        asked = Load(network, {"PERFORMANCE_HINT": "THROUGHPUT", **more})
        return plugin.join_if_it_pays(name, asked)


@pytest.fixture
def gain(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the measurement finds; its one element may be changed."""
    found = [2.0]

    def compare(*_: object) -> measurement.Comparison:
        return measurement.Comparison(found[0], 0.5)

    monkeypatch.setattr(measurement, "compare", compare)
    return found


def test_a_hint_gives_batches_where_they_pay(plugin: BatchPlugin, gain: list[float]) -> None:
    loaded = hinted(plugin, networks.mlp().network)
    assert isinstance(loaded, BatchNetwork)
    assert loaded.notes[0].startswith("batches of up to 8 rows: 2.00 times the throughput")
    loaded.close()


def test_sizes_that_were_chosen_for_the_measurement_are_said(
    plugin: BatchPlugin, gain: list[float]
) -> None:
    text = "m (float[N,T] x) => (float[N,T] y) { y = Relu(x) }"
    loaded = hinted(plugin, network_of(text))
    assert loaded.notes[0].endswith("measured in 0.5 s with x[1,64]")
    loaded.close()


def test_and_none_where_they_do_not(plugin: BatchPlugin, gain: list[float]) -> None:
    gain[0] = 0.9
    loaded = hinted(plugin, networks.mlp().network)
    assert not isinstance(loaded, BatchNetwork)
    assert loaded.notes == (
        "served unbatched: batches of up to 8 rows have 0.90 times the throughput of requests "
        "apart, measured in 0.5 s",
    )
    assert loaded.config.to_strings()["ALLOW_AUTO_BATCHING"] == "NO"
    loaded.close()


def test_a_run_too_long_for_the_time_budget_is_not_measured(
    plugin: BatchPlugin, gain: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "batches_a_round", lambda *_: 0)
    loaded = hinted(plugin, networks.mlp().network)
    (note,) = loaded.notes
    assert note.startswith("served unbatched: whether batches pay was not measured: time budget")
    assert loaded.get_metric("NOTES") == [note]
    loaded.close()


def test_a_device_that_is_busy_with_other_networks_holds_no_load_up(
    plugin: BatchPlugin, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hint_module, "PATIENCE_SECONDS", 0.1)
    other = services.devices.plugin("CPU").load_network(Load(networks.add().network))
    with occupied(other):
        loaded = hinted(plugin, networks.mlp().network)
    (note,) = loaded.notes
    assert "not measured: the device was too busy" in note
    assert_same_outputs(
        InferRequest(loaded).infer(networks.mlp().inputs), networks.mlp().expected(), 1e-4
    )
    loaded.close()
    other.close()


def test_a_cancelled_load_is_not_taken_for_a_busy_device(
    plugin: BatchPlugin, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, made = services.devices.plugin("CPU").load_network(Load(networks.add().network)), []
    device = services.devices.plugin("CPU")
    load_network = device.load_network

    def load_and_cancel(load: Load) -> ExecutableNetwork:
        made.append(load_network(load))
        load.token.cancel(Cancelled("nobody waits"))
        return made[0]

    monkeypatch.setattr(device, "load_network", load_and_cancel)
    with occupied(other), pytest.raises(Cancelled, match="nobody waits"):
        plugin.join_if_it_pays(DeviceName.parse("CPU"), Load(networks.mlp().network))
    assert made[0]._closed
    other.close()


def test_what_takes_any_number_of_rows_is_loaded_once(
    plugin: BatchPlugin, gain: list[float], services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[object] = []
    device, load = services.devices.plugin("CPU"), CpuPlugin._compile

    def compile_network(*arguments: Any) -> Any:
        loads.append(arguments)
        return load(*arguments)

    monkeypatch.setattr(type(device), "_compile", compile_network)
    loaded = hinted(plugin, networks.mlp().network)
    assert isinstance(loaded, BatchNetwork)
    assert len(loads) == 1
    request = InferRequest(loaded)
    assert_same_outputs(request.infer(networks.mlp().inputs), networks.mlp().expected(), 1e-4)
    loaded.close()
    assert loaded.inner._closed


@pytest.mark.parametrize("found", [2.0, 0.5])
def test_the_network_that_does_not_serve_is_closed(
    plugin: BatchPlugin, gain: list[float], found: float
) -> None:
    gain[0] = found
    made: list[ExecutableNetwork] = []
    loaded = hinted(plugin, networks.mlp().network, made=made)
    (plain,) = made
    assert not plain._closed
    assert isinstance(loaded, BatchNetwork) is (found > 1)
    loaded.close()
    assert plain._closed


def test_what_cannot_be_batched_is_served_and_the_reason_said(plugin: BatchPlugin) -> None:
    loaded = hinted(plugin, networks.recurrent().network)
    assert loaded.notes[0].startswith("served unbatched: requests to this network cannot run")
    request = InferRequest(loaded)
    case = networks.recurrent()
    assert_same_outputs(request.infer(case.inputs), case.expected(), 1e-4)
    loaded.close()


def test_a_device_id_goes_along_with_a_hint(plugin: BatchPlugin, gain: list[float]) -> None:
    loaded = hinted(plugin, networks.mlp().network, "CPU.0", DEVICE_ID="0")
    assert isinstance(loaded, BatchNetwork)
    loaded.close()


def test_the_measurement_runs_both_twice_at_least_and_then_as_time_allows(
    plugin: BatchPlugin,
) -> None:
    case = networks.mlp()
    plain = plugin.services.devices.plugin("CPU").load_network(Load(case.network))
    joined = load(plugin, case)
    requests = [{"x": np.asarray(case.inputs["x"])[:1]}] * 5
    for left, rounds in ((0.0, 2), (6.0, 3), (1000.0, 5)):
        clock = ManualClock()
        tick = partial(clock.advance, 1.0)
        found = measurement.compare(plain, joined, requests, left, CancelToken(), tick)
        assert found.gain > 0
        assert clock.now == 2 * rounds + 3  # it looks before and after each round
    plain.close()
    joined.close()


@pytest.mark.parametrize(("load_seconds", "wanted"), [(0.001, 0.25), (0.7, 0.7), (30.0, 1.0)])
def test_the_time_to_spend_is_the_loads_own_within_bounds(
    load_seconds: float, wanted: float
) -> None:
    assert measurement.wanted_seconds(load_seconds) == wanted


@pytest.mark.parametrize(
    ("one_seconds", "batches"),
    [(0.0001, 4), (0.003, 2), (0.005, 1), (0.07, 1), (0.08, 0), (5.0, 0)],
)
def test_longer_runs_make_smaller_rounds_until_three_seconds_are_too_short_for_the_least(
    one_seconds: float, batches: int
) -> None:
    assert measurement.batches_a_round(one_seconds, 8, 0.25) == batches


@pytest.mark.parametrize("one_seconds", [0.0001, 0.001, 0.003, 0.006, 0.02, 0.07])
def test_what_is_planned_takes_a_second_or_is_the_least_and_takes_three(one_seconds: float) -> None:
    batches = measurement.batches_a_round(one_seconds, 8, 1.0)
    assert batches
    trial, rounds = 2 * ROWS, 2 * measurement.FEWEST_ROUNDS * (8 * batches + 1)
    most = measurement.LEAST_SECONDS if batches == 1 else measurement.MOST_SECONDS
    assert (trial + rounds) * one_seconds <= most
