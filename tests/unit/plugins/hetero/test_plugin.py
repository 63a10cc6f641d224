"""The device that splits: whom it asks, what it hands on, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from headrace.plugins import cpu, hetero, template
from headrace.plugins.hetero.plugin import HeteroPlugin
from headrace.plugins.template.executable_network import TemplateNetwork
from headrace.plugins.template.plugin import TemplatePlugin
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import EXECUTION_TIMEOUT, NUM_STREAMS
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.compiled_plugin import Support
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.errors import (
    EndedWorker,
    FailedPrecondition,
    InvalidArgument,
    InvalidModel,
    NotFound,
    Unavailable,
    Unimplemented,
    UnsupportedLayer,
    UnsupportedLayers,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import InputOptions, NetworkOptions, OutputOptions
from headrace.runtime.transform.query import QueryResult
from headrace.testing import networks
from headrace.testing.case import Case, network_of, parse
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services as real_services


class PickyPlugin(TemplatePlugin):
    """Runs only some operators, remembers what it was loaded with, and exports a number."""

    imports_native = True
    operators: ClassVar[frozenset[str]] = frozenset({"Abs", "Neg", "Constant"})

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        self.loaded: list[Configuration] = []
        self.imported: list[bytes] = []
        super().__init__(name, services, config)

    def _support(self, network: Network, config: Configuration) -> Support:
        return lambda node: None if node.op_type in self.operators else f"no {node.op_type} here"

    def _compile(self, network: Network, config: Configuration, _: CancelToken) -> TemplateNetwork:
        if any(node.name == "spoilt" for node in network.nodes()):
            raise InvalidModel("spoilt layers cannot be compiled", field="model")
        self.loaded.append(config)
        return PickyNetwork(network, config, self)

    def _import(
        self, network: Network, native: bytes, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        self.imported.append(native)
        return self._compile(network, config, token)


class PickyNetwork(TemplateNetwork):
    """Does not take numbers above 100."""

    def _infer(self, job: Job) -> None:
        if any(np.max(np.asarray(value)) > 100 for value in job.inputs.values()):
            raise InvalidArgument("numbers above 100", field="inputs")
        super()._infer(job)

    def _export(self) -> bytes:
        return ",".join(layer.name for layer in self.network.layers).encode()


@plugin_api(1)
def create_picky(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return PickyPlugin(name, services, config)


@plugin_api(1)
def create_broken(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    raise RuntimeError("no driver")


SOURCES = (
    PluginSource("CPU", lambda: cpu.create_plugin),
    PluginSource("TEMPLATE", lambda: template.create_plugin),
    PluginSource("PICKY", lambda: create_picky),
    PluginSource("OTHER", lambda: create_picky),
    PluginSource("BROKEN", lambda: create_broken),
)
TEXT = "t (float[2] x) => (float[2] y) { a = Abs(x) b = Relu(a) y = Neg(b) }"
CASE = Case("t", parse(TEXT), {"x": networks.random(2)})
ISLANDS_STAY = {"HETERO_MERGE_ISLANDS": "NO"}


@pytest.fixture
def services() -> Iterator[Services]:
    with real_services(SOURCES) as offered:
        yield offered


@pytest.fixture
def plugin(services: Services) -> HeteroPlugin:
    return HeteroPlugin("HETERO", services, {})


@pytest.fixture
def picky(services: Services) -> PickyPlugin:
    found = services.devices.plugin("PICKY")
    assert isinstance(found, PickyPlugin)
    found.loaded.clear()
    found.imported.clear()
    return found


def over(devices: str, **affinities: str) -> NetworkOptions:
    members = DeviceName.parse(f"HETERO:{devices}").members
    return NetworkOptions(members=members, affinities=affinities)


def subgraphs(
    plugin: HeteroPlugin, case: Case, options: NetworkOptions, config: Mapping[str, str] = {}
) -> list[tuple[str, tuple[str, ...]]]:
    result = plugin.query_network(case.network, config, options)
    assert not result.unsupported
    return [(each.device, each.layers) for each in result.subgraphs]


# -- which devices --


def test_without_a_list_it_says_how_to_give_one(plugin: HeteroPlugin) -> None:
    for ask in (
        lambda: plugin.query_network(CASE.network, {}),
        lambda: plugin.load_network(Load(CASE.network)),
    ):
        with pytest.raises(InvalidArgument, match="HETERO:CPU,TEMPLATE") as caught:
            ask()
        assert caught.value.field == "device"


def test_the_list_may_be_configured_and_the_devices_name_wins(plugin: HeteroPlugin) -> None:
    plugin.set_config({"TARGET_FALLBACK": "PICKY,TEMPLATE", **ISLANDS_STAY})
    assert subgraphs(plugin, CASE, NetworkOptions())[0][0] == "PICKY"
    assert subgraphs(plugin, CASE, over("TEMPLATE"))[0][0] == "TEMPLATE"
    network = plugin.load_network(Load(CASE.network, options=over("TEMPLATE,PICKY")))
    assert network.get_metric("TARGET_FALLBACK") == "TEMPLATE,PICKY"
    network.close()


@pytest.mark.parametrize(
    ("listed", "error"),
    [("CPU,NOPE", NotFound), ("CPU,BROKEN", Unavailable), ("CPU,,", InvalidArgument)],
)
def test_a_device_of_the_list_that_is_not_there_is_named(
    plugin: HeteroPlugin, listed: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        plugin.load_network(Load(CASE.network, {"TARGET_FALLBACK": listed}))


@pytest.mark.parametrize("listed", ["[HETERO:CPU,TEMPLATE],PICKY", "[MULTI:[HETERO:CPU]],CPU"])
def test_it_does_not_split_what_is_split_already(plugin: HeteroPlugin, listed: str) -> None:
    with pytest.raises(InvalidArgument, match="HETERO"):
        plugin.load_network(Load(CASE.network, options=over(listed)))
    with pytest.raises(InvalidArgument, match="HETERO"):
        plugin.load_network(Load(CASE.network, {"TARGET_FALLBACK": listed}))


# -- who runs what --


def test_a_layer_goes_to_the_first_device_that_runs_it(plugin: HeteroPlugin) -> None:
    found = subgraphs(plugin, CASE, over("PICKY,TEMPLATE"), ISLANDS_STAY)
    assert found == [("PICKY", ("a",)), ("TEMPLATE", ("b",)), ("PICKY", ("y",))]


def test_a_lone_layer_joins_its_neighbours_where_they_are_supported(plugin: HeteroPlugin) -> None:
    found = subgraphs(plugin, CASE, over("PICKY,TEMPLATE"))
    assert found == [("TEMPLATE", ("a", "b", "y"))]
    asked = plugin.query_network(CASE.network, {}, over("PICKY,TEMPLATE"))
    network = plugin.load_network(Load(CASE.network, options=over("PICKY,TEMPLATE")))
    for notes in (asked.notes, network.notes):
        assert any("moved from PICKY to TEMPLATE" in note for note in notes)
    network.close()


def test_the_metadata_of_a_node_says_where_it_goes_and_the_request_wins(
    plugin: HeteroPlugin,
) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(CASE.model)
    for node in model.graph.node:
        node.metadata_props.add(key="affinity", value="PICKY" if node.output[0] == "a" else "CPU")
    case = Case("t", model, CASE.inputs)
    assert subgraphs(plugin, case, over("CPU,PICKY")) == [("PICKY", ("a",)), ("CPU", ("b", "y"))]
    found = subgraphs(plugin, case, over("CPU,PICKY", a="CPU", y="picky"))
    assert found == [("CPU", ("a", "b")), ("PICKY", ("y",))]


def test_an_affinity_that_cannot_be_followed_names_the_layer(plugin: HeteroPlugin) -> None:
    with pytest.raises(InvalidArgument, match="'b'"):
        plugin.load_network(Load(CASE.network, options=over("CPU,PICKY", b="TEMPLATE")))
    with pytest.raises(FailedPrecondition, match="no Relu here"):
        plugin.load_network(Load(CASE.network, options=over("CPU,PICKY", b="PICKY")))
    with pytest.raises(InvalidArgument, match="'nobody'"):
        plugin.load_network(Load(CASE.network, options=over("CPU,PICKY", nobody="CPU")))


def test_a_layer_with_bodies_goes_where_its_insides_want(plugin: HeteroPlugin) -> None:
    case = networks.branch()
    (choose,) = (node for node in case.model.graph.node if node.op_type == "If")
    for attribute in choose.attribute:
        for node in attribute.g.node:
            node.metadata_props.add(key="affinity", value="CPU")
    found = subgraphs(plugin, case, over("TEMPLATE,CPU"), ISLANDS_STAY)
    assert found[-1] == (
        "CPU",
        ("choose", "choose/then_branch/times", "choose/else_branch/minus"),
    )
    choose.metadata_props.add(key="affinity", value="TEMPLATE")
    with pytest.raises(InvalidArgument, match="choose"):
        plugin.query_network(case.network, {}, over("TEMPLATE,CPU"))


def test_each_unsupported_layer_is_listed_once_with_every_devices_reason(
    plugin: HeteroPlugin,
) -> None:
    case = networks.branch()
    result = plugin.query_network(case.network, {}, over("PICKY,OTHER"))
    reasons = {layer.layer: layer.reason for layer in result.unsupported}
    assert reasons["outside"] == "PICKY: no Add here; OTHER: no Add here"
    assert set(reasons) == set(case.network.layer_names)
    with pytest.raises(UnsupportedLayers, match="HETERO:PICKY,OTHER does not support") as caught:
        plugin.load_network(Load(case.network, options=over("PICKY,OTHER")))
    assert list(caught.value.layers) == result.unsupported


def test_inputs_and_outputs_are_with_the_layers_beside_them(plugin: HeteroPlugin) -> None:
    result = plugin.query_network(CASE.network, {}, over("CPU,PICKY", y="PICKY"))
    assert result.housekeeping == {"x": "CPU", "y": "PICKY"}


THIRDS = """t (float16[64] x) => (float16[64] y) {
    k = Constant <value = float[1] {3.0}> ()
    [three] c = Cast <to = 10> (k)
    [third] a = Div(x, c)
    [like] d = CastLike(k, a)
    y = Mul(a, d)
}"""
IN_HALVES = Case("t", parse(THIRDS), {"x": networks.random(64).astype(np.float16)})


def test_a_tensor_read_for_its_type_alone_does_not_cross(plugin: HeteroPlugin) -> None:
    options = over("CPU,TEMPLATE", like="TEMPLATE")
    found = subgraphs(plugin, IN_HALVES, options)
    assert [device for device, _ in found] == ["TEMPLATE", "CPU"]
    as_it_came = subgraphs(plugin, IN_HALVES, options, {"DISABLE_TRANSFORMATIONS": "YES"})
    assert [device for device, _ in as_it_came] == ["CPU", "TEMPLATE", "CPU"]


def test_a_cast_to_float16_elsewhere_leaves_what_a_device_computes_in_float32(
    plugin: HeteroPlugin, services: Services
) -> None:
    alone = services.devices.plugin("CPU").load_network(Load(IN_HALVES.network))
    split = plugin.load_network(
        Load(IN_HALVES.network, options=over("CPU,TEMPLATE", like="TEMPLATE"))
    )
    assert split.get_metric("HETERO_NUMBER_OF_SUBGRAPHS") == 2
    one, other = (InferRequest(each).infer(IN_HALVES.inputs)["y"] for each in (alone, split))
    assert np.array_equal(np.asarray(one), np.asarray(other))
    for each in (alone, split):
        each.close()


def test_an_unsupported_layer_has_the_operator_that_the_network_gives_it(
    plugin: HeteroPlugin,
) -> None:
    result = plugin.query_network(IN_HALVES.network, {}, over("PICKY"))
    assert ("like", "CastLike") in [(each.layer, each.op_type) for each in result.unsupported]


UNTYPED = """t (float[2] x) => (float[2] y) {
    [before] a = Abs(x)
    [strange] b = headrace.test.Strange(a)
    [after] y = Neg(b)
}"""


class StrangePlugin(PickyPlugin):
    operators = frozenset({"Abs", "Strange", "Neg"})


@plugin_api(1)
def create_strange(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return StrangePlugin(name, services, config)


@pytest.fixture
def with_strange() -> Iterator[HeteroPlugin]:
    with real_services((*SOURCES, PluginSource("STRANGE", lambda: create_strange))) as offered:
        yield HeteroPlugin("HETERO", offered, {})


@pytest.mark.parametrize("devices", ["PICKY,STRANGE", "STRANGE,PICKY"])
def test_a_tensor_of_unknown_type_is_not_cut(with_strange: HeteroPlugin, devices: str) -> None:
    case = Case("t", parse(UNTYPED), {})
    found = dict(subgraphs(with_strange, case, over(devices, before="PICKY"), ISLANDS_STAY))
    assert found == {"PICKY": ("before",), "STRANGE": ("strange", "after")}


def test_a_tensor_of_unknown_type_that_has_to_cross_is_a_reason(
    with_strange: HeteroPlugin,
) -> None:
    case = Case("t", parse(UNTYPED), {})
    options = over("PICKY,STRANGE", before="PICKY", strange="STRANGE", after="PICKY")
    with pytest.raises(FailedPrecondition, match="the type of 'b' is not known"):
        with_strange.load_network(Load(case.network, options=options))


# -- what a load asks --


def layers_asked(picky: Plugin, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Keeps the layers of each network that the device is asked about."""
    asked: list[list[str]] = []
    query = picky.query_network

    def kept(network: Network, *arguments: Any) -> QueryResult:
        asked.append([node.name or "" for node in network.nodes()])
        return query(network, *arguments)

    monkeypatch.setattr(picky, "query_network", kept)
    return asked


def test_it_works_while_every_device_of_its_parts_does(plugin: HeteroPlugin) -> None:
    network = plugin.load_network(Load(CASE.network, ISLANDS_STAY, over("PICKY,TEMPLATE,OTHER")))
    assert network.works({"OTHER.0": False})
    assert not network.works({"PICKY.0": False})
    assert not network.works({"TEMPLATE.0": False})
    network.close()


def test_each_device_is_asked_once_and_only_for_what_those_before_it_leave(
    plugin: HeteroPlugin, picky: PickyPlugin, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, other = services.devices.plugin("TEMPLATE"), services.devices.plugin("OTHER")
    asked = [layers_asked(each, monkeypatch) for each in (picky, template, other)]
    network = plugin.load_network(Load(CASE.network, ISLANDS_STAY, over("PICKY,TEMPLATE,OTHER")))
    assert asked == [[["a", "b", "y"]], [["a", "b", "y"]], []]
    assert len(picky.loaded) == 2
    assert network.get_metric("EXECUTION_DEVICES") == ["PICKY.0", "TEMPLATE.0"]
    network.close()


def test_an_affinity_may_name_a_device_behind_one_that_runs_all(plugin: HeteroPlugin) -> None:
    assert subgraphs(plugin, CASE, over("TEMPLATE,PICKY", y="PICKY"))[-1] == ("PICKY", ("y",))


def test_a_network_that_is_kept_is_split_as_before(
    plugin: HeteroPlugin, picky: PickyPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = network_of(CASE.model)
    kept.keep()
    options, loaded = over("PICKY,TEMPLATE"), []
    usual = picky.load_network

    def load_network(load: Load) -> ExecutableNetwork:
        loaded.append([node.name or "" for node in load.network.nodes()])
        return usual(load)

    monkeypatch.setattr(picky, "load_network", load_network)
    tries = []
    for _ in range(2):
        network = plugin.load_network(Load(kept, ISLANDS_STAY, options))
        assert_same_outputs(InferRequest(network).infer(CASE.inputs), CASE.expected(), 1e-6)
        network.close()
        tries.append(loaded[:])
        loaded.clear()
    assert tries == [[["a"], ["y"]]] * 2


def test_a_kept_network_is_split_as_a_query_has_said(
    plugin: HeteroPlugin, picky: PickyPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = network_of(CASE.model)
    kept.keep()
    options, loaded, usual = over("PICKY,TEMPLATE"), [], picky.load_network
    plugin.query_network(kept, ISLANDS_STAY, options)

    def load_network(load: Load) -> ExecutableNetwork:
        loaded.append([node.name or "" for node in load.network.nodes()])
        return usual(load)

    monkeypatch.setattr(picky, "load_network", load_network)
    plugin.load_network(Load(kept, ISLANDS_STAY, options)).close()
    assert loaded == [["a"], ["y"]]


def test_a_kept_network_is_split_anew_if_its_parts_do_not_load_again(
    plugin: HeteroPlugin, picky: PickyPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = network_of(CASE.model)
    kept.keep()
    options, usual, refusals = over("PICKY,TEMPLATE"), picky.load_network, [True]
    plugin.load_network(Load(kept, ISLANDS_STAY, options)).close()

    def load_network(load: Load) -> ExecutableNetwork:
        if refusals and refusals.pop():
            raise InvalidModel("not today", field="model")
        return usual(load)

    monkeypatch.setattr(picky, "load_network", load_network)
    network = plugin.load_network(Load(kept, ISLANDS_STAY, options))
    assert_same_outputs(InferRequest(network).infer(CASE.inputs), CASE.expected(), 1e-6)
    network.close()


def test_a_layer_that_a_device_refuses_at_the_load_of_its_part_goes_elsewhere(
    plugin: HeteroPlugin, picky: PickyPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device runs Neg only in a network with Abs."""

    def support(network: Network, _: Configuration) -> Support:
        kinds = {node.op_type for node in network.nodes()}
        usual = PickyPlugin._support(picky, network, picky.config)
        return lambda node: (
            "no Neg without Abs" if node.op_type == "Neg" and "Abs" not in kinds else usual(node)
        )

    monkeypatch.setattr(picky, "_support", support)
    options = over("PICKY,TEMPLATE")
    network = plugin.load_network(Load(CASE.network, ISLANDS_STAY, options))
    assert network.get_metric("EXECUTION_DEVICES") == ["PICKY.0", "TEMPLATE.0"]
    assert any("only together with layers that are elsewhere" in each for each in network.notes)
    assert_same_outputs(InferRequest(network).infer(CASE.inputs), CASE.expected(), 1e-6)
    network.close()
    pinned = over("PICKY,TEMPLATE", y="PICKY")
    with pytest.raises(FailedPrecondition, match="no Neg without Abs"):
        plugin.load_network(Load(CASE.network, ISLANDS_STAY, pinned))


def test_a_part_goes_elsewhere_whose_device_refuses_what_it_has_added(
    plugin: HeteroPlugin, picky: PickyPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a device that makes other numbers of an input's, but not for all shapes."""
    usual = picky.load_network

    def load_network(load: Load) -> ExecutableNetwork:
        if [node.name for node in load.network.nodes()] == ["a"]:
            added = UnsupportedLayer("x/float", "Cast", "no Cast of one axis", "PICKY")
            raise UnsupportedLayers("PICKY", [added])
        return usual(load)

    monkeypatch.setattr(picky, "load_network", load_network)
    network = plugin.load_network(Load(CASE.network, ISLANDS_STAY, over("PICKY,TEMPLATE")))
    assert_same_outputs(InferRequest(network).infer(CASE.inputs), CASE.expected(), 1e-6)
    assert network.get_metric("EXECUTION_DEVICES") == ["TEMPLATE.0", "PICKY.0"]
    network.close()
    pinned = over("PICKY,TEMPLATE", a="PICKY")
    with pytest.raises(FailedPrecondition, match="no Cast of one axis"):
        plugin.load_network(Load(CASE.network, ISLANDS_STAY, pinned))


# -- what is handed on --


def test_keys_go_to_the_devices_that_they_are_for(plugin: HeteroPlugin, picky: PickyPlugin) -> None:
    config = {
        "EXECUTION_TIMEOUT": "5",
        "PICKY.EXECUTION_TIMEOUT": "7",
        "PICKY.NUM_STREAMS": "1",
        **ISLANDS_STAY,
    }
    network = plugin.load_network(Load(CASE.network, config, over("PICKY,TEMPLATE")))
    assert network.config[EXECUTION_TIMEOUT] == 5.0
    assert [(each[EXECUTION_TIMEOUT], each[NUM_STREAMS]) for each in picky.loaded] == [(7.0, 1)] * 2
    network.close()


def test_keys_are_judged_for_devices_that_get_no_layer_too(plugin: HeteroPlugin) -> None:
    """THROUGHPUT_STREAMS is TEMPLATE's alone, and one of the whole device."""
    for key in ("THROUGHPUT_STREAMS", "TEMPLATE.NUM_STREAM"):
        with pytest.raises((InvalidArgument, NotFound), match=key.rpartition(".")[2]):
            plugin.load_network(Load(CASE.network, {key: "1"}, over("CPU,TEMPLATE")))


def test_what_was_set_on_it_holds_for_its_devices_and_the_load_wins(
    plugin: HeteroPlugin, picky: PickyPlugin
) -> None:
    plugin.set_config({"EXECUTION_TIMEOUT": "5", "QUEUE_CAPACITY": "7"})
    options = over("PICKY,TEMPLATE", a="PICKY")
    for config, expected in (({}, 5.0), ({"EXECUTION_TIMEOUT": "6"}, 6.0)):
        picky.loaded.clear()
        plugin.load_network(Load(CASE.network, config, options)).close()
        assert picky.loaded[0][EXECUTION_TIMEOUT] == expected


@pytest.mark.parametrize("key", ["NUM_STREAM", "CPU.NUM_STREAM", "OTHER.NUM_STREAMS"])
def test_a_key_that_nobody_knows_is_refused_at_load_alone(plugin: HeteroPlugin, key: str) -> None:
    plugin.query_network(CASE.network, {key: "1"}, over("CPU,PICKY"))
    with pytest.raises(NotFound):
        plugin.load_network(Load(CASE.network, {key: "1"}, over("CPU,PICKY")))


def test_a_change_of_a_loaded_network_reaches_its_subgraphs(
    plugin: HeteroPlugin, picky: PickyPlugin
) -> None:
    network = plugin.load_network(Load(CASE.network, options=over("PICKY,TEMPLATE", a="PICKY")))
    network.set_config({"EXECUTION_TIMEOUT": "3"})
    parts = [each.executable for each in network._subgraphs]  # type: ignore[attr-defined]
    assert [part.config[EXECUTION_TIMEOUT] for part in parts] == [3.0, 3.0]
    network.close()


def test_a_request_that_a_device_does_not_take_is_served_by_the_next_of_the_list(
    plugin: HeteroPlugin,
) -> None:
    options = over("PICKY,CPU", a="PICKY", b="CPU", y="PICKY")
    request = InferRequest(plugin.load_network(Load(CASE.network, {}, options)))
    for number in (-1, 101, -200, 3):
        inputs = {"x": np.full(2, number, np.float32)}
        assert_same_outputs(request.infer(inputs), CASE.expected(inputs), 1e-6)


def test_an_extension_belongs_to_a_device_of_the_list(plugin: HeteroPlugin) -> None:
    functions = list(networks.local_function().network.model.functions.values())
    with pytest.raises(Unimplemented, match="devices of its list"):
        plugin.add_extension(functions)


def test_preprocessing_is_done_once_and_does_not_touch_what_others_read(
    plugin: HeteroPlugin,
) -> None:
    text = """t (float[2] x) => (float[2] y, float[2] z) {
        [first] y = Abs(x)
        [second] z = Neg(y)
    }"""
    case = Case("t", parse(text), {})
    options = replace(
        over("CPU,TEMPLATE", first="CPU", second="TEMPLATE"),
        inputs={"x": InputOptions(dtype=ir.DataType.INT32)},
        outputs={"y": OutputOptions(dtype=ir.DataType.INT64)},
    )
    network = plugin.load_network(Load(case.network, {"PERF_COUNT": "YES"}, options))
    request = InferRequest(network)
    sent = networks.random(2) * 10
    outputs = request.infer({"x": sent.astype("int32")})
    whole = sent.astype("int32").astype("float32")
    assert_same_outputs(outputs, {"y": abs(whole).astype("int64"), "z": -abs(whole)}, 1e-6)
    named = {name for layer in request.performance_counts for name in layer.origins}
    assert named == {"first", "second"}
    network.close()


def test_outputs_that_no_layer_makes_are_copies(plugin: HeteroPlugin) -> None:
    text = "t (float[2] x) => (float[2] y, float[2] w) { y = Abs(x) }"
    weights = networks.random(2)
    case = Case("t", parse(text, {"w": weights}), {})
    network = plugin.load_network(Load(case.network, options=over("CPU")))
    for _ in range(2):
        outputs = InferRequest(network).infer({"x": weights})
        assert_same_outputs({"w": outputs["w"]}, {"w": weights}, 0)
        outputs["w"][:] = 0  # type: ignore[call-overload, index]
    network.close()


# -- failures of a load --


def test_a_device_that_fails_to_compile_is_named_and_nothing_stays_loaded(
    plugin: HeteroPlugin,
) -> None:
    text = "t (float[2] x) => (float[2] y) { [fine] a = Relu(x) [spoilt] y = Neg(a) }"
    case = Case("t", parse(text), {})
    with pytest.raises(InvalidModel, match="subgraph 2 of 2 on PICKY: spoilt layers"):
        plugin.load_network(Load(case.network, options=over("CPU,PICKY", spoilt="PICKY")))


# -- export and import --


@pytest.mark.parametrize("imported", [False, True], ids=["load", "import"])
def test_a_device_whose_worker_ends_at_a_part_gets_nothing_of_the_network(
    plugin: HeteroPlugin, picky: PickyPlugin, monkeypatch: pytest.MonkeyPatch, imported: bool
) -> None:
    options = over("PICKY,TEMPLATE")
    native = exported(plugin, over("PICKY,TEMPLATE", a="PICKY", y="PICKY")) if imported else b""
    asked: list[Network] = []

    def end(load: Load) -> ExecutableNetwork:
        asked.append(load.network)
        raise EndedWorker("this model ended the worker process", metadata={"device": "PICKY"})

    monkeypatch.setattr(picky, "load_network", end)
    network = plugin.load_network(Load(CASE.network, ISLANDS_STAY, options, native=native))
    assert len(asked) == 1
    assert network.get_metric("EXECUTION_DEVICES") == ["TEMPLATE.0"]
    assert any("nothing runs on PICKY: subgraph 1" in note for note in network.notes)
    assert_same_outputs(InferRequest(network).infer(CASE.inputs), CASE.expected(), 1e-6)
    network.close()


def test_where_no_other_device_is_left_the_reason_is_the_workers_end(
    plugin: HeteroPlugin, picky: PickyPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> ExecutableNetwork:
        raise EndedWorker("this model ended the worker process", metadata={"device": "PICKY"})

    monkeypatch.setattr(picky, "load_network", end)
    case = Case("t", parse("t (float[2] x) => (float[2] y) { y = Abs(x) }"), {})
    with pytest.raises(UnsupportedLayers, match="ended the worker process"):
        plugin.load_network(Load(case.network, options=over("PICKY")))


@pytest.mark.parametrize(("devices", "noted"), [("PICKY,TEMPLATE", True), ("TEMPLATE", False)])
def test_a_note_says_that_quantising_computed_values_makes_differences_larger(
    plugin: HeteroPlugin, devices: str, noted: bool
) -> None:
    text = "f (float[4] x) => (uint8[4] y) { a = Abs(x) y, s, z = DynamicQuantizeLinear(a) }"
    network = network_of(text)
    affinities = {"a": "PICKY"} if noted else {}
    loaded = plugin.load_network(Load(network, options=over(devices, **affinities)))
    assert any("quantises" in note for note in loaded.notes) is noted
    loaded.close()


def exported(plugin: HeteroPlugin, options: NetworkOptions) -> bytes:
    network = plugin.load_network(Load(CASE.network, options=options))
    native = network.export()
    network.close()
    return native


def test_each_device_imports_its_own_bytes(plugin: HeteroPlugin, picky: PickyPlugin) -> None:
    options = over("PICKY,TEMPLATE", a="PICKY", y="PICKY")
    native = exported(plugin, options)
    network = plugin.load_network(Load(CASE.network, options=options, native=native))
    assert picky.imported == [b"a", b"y"]
    assert not network.notes
    assert_same_outputs(InferRequest(network).infer(CASE.inputs), CASE.expected(), 1e-6)
    network.close()


def test_an_import_keeps_the_subgraphs_without_being_told_the_affinities(
    plugin: HeteroPlugin,
) -> None:
    native = exported(plugin, over("PICKY,TEMPLATE", a="PICKY", y="PICKY"))
    network = plugin.load_network(Load(CASE.network, options=over("PICKY,TEMPLATE"), native=native))
    assert network.get_metric("HETERO_NUMBER_OF_SUBGRAPHS") == 3
    network.close()


def test_bytes_of_another_backend_version_are_not_used(
    plugin: HeteroPlugin, picky: PickyPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = over("PICKY,TEMPLATE", a="PICKY", y="PICKY")
    native = exported(plugin, options)
    monkeypatch.setattr(picky, "backend_version", "next")
    network = plugin.load_network(Load(CASE.network, options=options, native=native))
    assert not picky.imported
    assert any("compiled anew" in note and "next" in note for note in network.notes)
    assert_same_outputs(InferRequest(network).infer(CASE.inputs), CASE.expected(), 1e-6)
    network.close()


@pytest.mark.parametrize(
    ("case", "devices"),
    [(CASE, "TEMPLATE,CPU"), (networks.relu_relu(), "PICKY,TEMPLATE")],
    ids=["other devices", "other network"],
)
def test_subgraphs_that_do_not_fit_are_split_anew(
    plugin: HeteroPlugin, case: Case, devices: str
) -> None:
    native = exported(plugin, over("PICKY,TEMPLATE", a="PICKY", y="PICKY"))
    network = plugin.load_network(Load(case.network, options=over(devices), native=native))
    assert any("split anew" in note for note in network.notes)
    assert_same_outputs(InferRequest(network).infer(case.inputs), case.expected(), 1e-6)
    network.close()


def test_bytes_that_are_no_container_are_not_used(plugin: HeteroPlugin) -> None:
    network = plugin.load_network(
        Load(CASE.network, options=over("CPU,TEMPLATE"), native=b"of something else")
    )
    assert any("split anew" in note for note in network.notes)
    network.close()


def test_the_entry_points_function_makes_one(services: Services) -> None:
    assert isinstance(hetero.create_plugin("HETERO", services, {}), HeteroPlugin)
