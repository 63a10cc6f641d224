"""Layers that have to be on one device, and quantised networks whose operators stay whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from headrace.plugins import cpu, hetero, template
from headrace.plugins.hetero.planning.groups import LayerGroup, kept_together, quantised
from headrace.plugins.hetero.planning.layers import edges_between
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult
from headrace.testing.case import network_of
from headrace.testing.services import services as real_services

LAYERS = ("a", "b", "c", "d", "e")
SOURCES = (
    PluginSource("CPU", lambda: cpu.create_plugin),
    PluginSource("TEMPLATE", lambda: template.create_plugin),
    PluginSource("HETERO", lambda: hetero.create_plugin),
)
QUANTISED = network_of(
    """quantised (float[N,4] x, float s, uint8 z) => (float[N,4] y) {
    [scaled] before = Relu(x)
    [q1] x_q = QuantizeLinear(before, s, z)
    [d1] x_d = DequantizeLinear(x_q, s, z)
    [sum] t = Add(x_d, x_d)
    [relu] r = Relu(t)
    [q2] t_q = QuantizeLinear(r, s, z)
    [d2] t_d = DequantizeLinear(t_q, s, z)
    [soft] u = Softmax(t_d)
    [q3] u_q = QuantizeLinear(u, s, z)
    [d3] u_d = DequantizeLinear(u_q, s, z)
    [last] y = Neg(u_d)
}""",
    opset=17,  # TEMPLATE dequantises from set 19 on
)


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with real_services(SOURCES) as offered:
        yield offered


def refused(groups: Sequence[Sequence[str]], **verdicts: str) -> dict[str, str]:
    """The layers that each device refuses in the end, in alphabetical order."""
    found = kept_together(
        LAYERS,
        [LayerGroup(tuple(map(LAYERS.index, group)), "they are a group") for group in groups],
        {device: dict.fromkeys(layers, "no") for device, layers in verdicts.items()},
    )
    return {device: "".join(sorted(reasons)) for device, reasons in found.items()}


def query(services: Services, network: Network, affinities: dict[str, str]) -> QueryResult:
    name = DeviceName.parse("HETERO:TEMPLATE,CPU")
    options = NetworkOptions(members=name.members, affinities=affinities)
    config = {"HETERO_MERGE_ISLANDS": "NO"}
    return services.devices.plugin(name.type).query_network(network, config, options)


@pytest.mark.parametrize(
    "groups", [["abc"], ["ab", "bc"], ["bc", "ab"]], ids=["one", "chained", "chained backwards"]
)
def test_a_device_that_refuses_a_layer_of_a_group_refuses_the_whole_group(
    groups: Sequence[str],
) -> None:
    assert refused(groups, A="c", B="") == {"A": "abc", "B": ""}


def test_the_reason_names_the_layer_that_is_elsewhere() -> None:
    found = kept_together(
        LAYERS, [LayerGroup((0, 1), "they are a group")], {"A": {"b": "no"}, "B": {}}
    )
    assert found["A"]["a"] == "they are a group, so it stays with 'b', which is elsewhere"


def test_a_group_that_no_device_runs_whole_is_not_kept_together() -> None:
    assert refused(["abc"], A="a", B="b") == {"A": "a", "B": "b"}


@pytest.mark.parametrize("groups", [["abc", "cde"], ["cde", "abc"]])
def test_two_groups_that_share_a_layer_do_not_leave_a_layer_without_a_device(
    groups: Sequence[str],
) -> None:
    found = refused(groups, A="a", B="e", C="")
    assert found == {"A": "abcde", "B": "abcde", "C": ""}
    alone = refused(groups, A="a", B="e")
    assert not set(alone["A"]) & set(alone["B"])


def test_an_operator_is_a_group_with_what_dequantises_before_and_quantises_behind_it() -> None:
    nodes = list(QUANTISED.model.graph)
    groups = quantised(nodes, edges_between(nodes))
    assert [[nodes[place].name for place in group.layers] for group in groups] == [
        ["d1", "sum", "relu", "q2"],
        ["d2", "soft", "q3"],
    ]


def test_a_device_that_does_not_dequantise_gets_no_quantised_operator(services: Services) -> None:
    devices = query(services, QUANTISED, {}).supported_layers
    assert [name for name, device in devices.items() if device == "TEMPLATE"] == [
        "scaled",
        "q1",
        "last",
    ]


def test_an_affinity_parts_a_quantised_group(services: Services) -> None:
    devices = query(services, QUANTISED, {"soft": "TEMPLATE"}).supported_layers
    assert devices["soft"] == "TEMPLATE"
    assert devices["d2"] == "CPU"
    assert devices["sum"] == devices["q2"] == "CPU"
    with pytest.raises(FailedPrecondition, match="d2"):
        query(services, QUANTISED, {"d2": "TEMPLATE"})
