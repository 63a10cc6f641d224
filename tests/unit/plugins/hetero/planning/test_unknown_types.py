"""Layers that cannot be separated, and what every device says of layers behind an unknown type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from headrace.plugins import auto, batch, cpu, hetero, multi, template
from headrace.plugins.hetero.planning.partition import Part
from headrace.plugins.hetero.planning.unknown_types import separated, unknown
from headrace.plugins.template.plugin import TemplatePlugin
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import AS_IT_IS, Plugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult
from headrace.runtime.transform.transform import transform_network
from headrace.testing.case import network_of
from headrace.testing.services import services as real_services


class ApartPlugin(TemplatePlugin):
    """Gets each network that it is asked about as bytes, as a device in another process does."""

    def query_network(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions = AS_IT_IS
    ) -> QueryResult:
        return super().query_network(Network.from_bytes(network.to_bytes()), config, options)


@plugin_api(1)
def create_apart(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return ApartPlugin(name, services, config)


SOURCES = (
    PluginSource("CPU", lambda: cpu.create_plugin),
    PluginSource("TEMPLATE", lambda: template.create_plugin),
    PluginSource("APART", lambda: create_apart),
    PluginSource("AUTO", lambda: auto.create_plugin),
    PluginSource("BATCH", lambda: batch.create_plugin),
    PluginSource("HETERO", lambda: hetero.create_plugin),
    PluginSource("MULTI", lambda: multi.create_plugin),
)
DEVICES = (
    "CPU",
    "TEMPLATE",
    "APART",
    "AUTO:CPU,TEMPLATE",
    "AUTO:APART",
    "BATCH:CPU(4)",
    "HETERO:CPU,TEMPLATE",
    "HETERO:APART,CPU",
    "HETERO:CPU,APART",
    "MULTI:CPU,TEMPLATE",
    "MULTI:APART,CPU",
)
STRANGE = """t (float[N,4] x) => ({}) {{
    [before] t0 = Relu(x)
    [first] t1 = NoSuchOp(t0)
    [second] t2 = NoSuchOp(t1)
    [after] {}
}}"""
AFTER = {
    "NonZero": ("int64[M,K] y", "y = NonZero(t2)"),
    "Shape": ("int64[2] y", "y = Shape(t2)"),
    "Relu": ("float[N,4] y", "y = Relu(t2)"),
    "If": (
        "int64[M,K] y",
        "y = If(t2) <then_branch = a () => (int64[M,K] z) { z = NonZero(t2) }, "
        "else_branch = b () => (int64[M,K] w) { w = NonZero(x) }>",
    ),
}


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with real_services(SOURCES) as offered:
        yield offered


def network(after: str) -> Network:
    return network_of(STRANGE.format(*AFTER[after]))


def asked(services: Services, device: str) -> tuple[Plugin, NetworkOptions]:
    name = DeviceName.parse(device)
    return services.devices.plugin(name.type), NetworkOptions(members=name.members)


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("device", DEVICES)
def test_layers_before_an_unknown_type_are_listed(
    services: Services, device: str, after: str
) -> None:
    plugin, options = asked(services, device)
    found = plugin.query_network(network(after), {}, options).unsupported
    assert {"first", "second"} <= {each.layer for each in found} <= {"first", "second", "after"}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("device", DEVICES)
def test_a_load_names_the_layers_that_a_query_lists(
    services: Services, device: str, after: str
) -> None:
    plugin, options = asked(services, device)
    listed = plugin.query_network(network(after), {}, options).unsupported
    with pytest.raises(UnsupportedLayers) as refused:
        plugin.load_network(Load(network(after), {}, options))
    assert {each.layer for each in refused.value.layers} == {each.layer for each in listed}


@pytest.mark.parametrize("devices", ["OPENVINO,APART", "APART,OPENVINO", "OPENVINO,CPU"])
@pytest.mark.parametrize("after", AFTER)
def test_openvino_in_a_list_does_not_hide_them(devices: str, after: str) -> None:
    pytest.importorskip("openvino")
    from headrace.plugins import openvino

    source = PluginSource("OPENVINO", lambda: openvino.create_plugin, {"ISOLATION": "NONE"})
    with real_services((*SOURCES, source)) as offered:
        plugin, options = asked(offered, f"HETERO:{devices}")
        found = plugin.query_network(network(after), {}, options).unsupported
    assert {"first", "second"} <= {each.layer for each in found} <= {"first", "second", "after"}


def test_both_ends_of_each_such_tensor_are_a_group() -> None:
    nodes = list(transform_network(network("NonZero"), common=False).model.graph)
    assert [group.layers for group in unknown(nodes)] == [(1, 2), (2, 3)]


def test_a_layer_that_still_reads_such_a_tensor_from_another_part_is_named() -> None:
    nodes = list(transform_network(network("NonZero"), common=False).model.graph)
    parts = [Part("A", (0, 1)), Part("B", (2, 3))]
    (layer,) = separated(nodes, unknown(nodes), parts)
    assert layer.layer == "second"
    assert "give 'first' and 'second' one affinity" in layer.reason
