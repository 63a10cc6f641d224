"""Queries: the layers that the device would run, after the same transformations as at a load."""

from __future__ import annotations

import pytest

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import FailedPrecondition, InvalidArgument, UnsupportedLayers
from headrace.runtime.transform.options import InputOptions, NetworkOptions
from headrace.testing import networks
from headrace.testing.case import Case
from headrace.testing.suite.fixtures import DeviceFixtures, Loader

_CASES = (
    networks.add(),
    networks.mlp(),
    networks.image(),
    networks.transformer(),
    networks.relu_relu(),
    networks.leftover(),
    networks.divide(),
    networks.local_function(),
    *networks.control_flow(),
    networks.sequence(),
    networks.string_join(),
)


class QueryConformance(DeviceFixtures):
    @pytest.mark.parametrize("case", [*_CASES, networks.unknown_operators()], ids=str)
    def test_every_layer_is_either_supported_or_not_with_a_reason(
        self, plugin: Plugin, case: Case
    ) -> None:
        network = case.network
        result = plugin.query_network(network, {})
        unsupported = [layer.layer for layer in result.unsupported]
        assert len(unsupported) == len(set(unsupported))
        assert not set(result.supported_layers) & set(unsupported)
        assert {*result.supported_layers, *unsupported} == set(network.layer_names)
        assert all(result.supported_layers.values())
        assert all(layer.op_type and layer.reason for layer in result.unsupported)

    @pytest.mark.parametrize("case", _CASES, ids=str)
    def test_a_network_that_is_wholly_supported_loads(self, plugin: Plugin, case: Case) -> None:
        network = case.network
        if plugin.query_network(network, {}).unsupported:
            pytest.skip("the device does not support it")
        plugin.load_network(Load(network)).close()

    def test_a_function_of_another_operator_set_is_run_or_refused(
        self, plugin: Plugin, load: Loader
    ) -> None:
        case = networks.function_of_another_operator_set()
        try:
            loaded = load(case)
        except UnsupportedLayers as error:
            assert [layer.layer for layer in error.layers] == ["call"]  # noqa: PT017 - it may be
        except FailedPrecondition as error:
            assert "Opset mismatch" in error.message  # noqa: PT017 - as above
        else:
            self.check(loaded, case)

    def test_an_operator_that_no_device_has_is_listed_with_its_reason(self, plugin: Plugin) -> None:
        result = plugin.query_network(networks.unknown_operators().network, {})
        listed = {layer.layer: layer for layer in result.unsupported}
        assert listed["strange"].op_type == "Strange"
        assert listed["strange"].reason
        assert listed["stranger"].op_type == "Stranger"
        assert {"first", "last"} <= set(result.supported_layers)

    def test_a_layer_that_is_transformed_away_is_still_reported(self, plugin: Plugin) -> None:
        result = plugin.query_network(networks.relu_relu().network, {})
        assert {"sum", "inner", "outer"} == set(result.supported_layers)

    def test_a_layer_that_nobody_reads_is_no_hindrance(self, plugin: Plugin) -> None:
        result = plugin.query_network(networks.leftover().network, {})
        assert not result.unsupported

    def test_the_query_sees_what_preprocessing_adds(self, plugin: Plugin) -> None:
        options = NetworkOptions(inputs={"x": InputOptions(mean=(0.5,))})
        result = plugin.query_network(networks.image().network, {}, options)
        names = {*result.supported_layers, *(layer.layer for layer in result.unsupported)}
        assert set(networks.image().network.layer_names) <= names
        wrong = NetworkOptions(inputs={"image_x": InputOptions(mean=(0.5,))})
        with pytest.raises(InvalidArgument, match="image_x"):
            plugin.query_network(networks.image().network, {}, wrong)

    def test_a_query_passes_over_unknown_keys_but_not_bad_values(self, plugin: Plugin) -> None:
        network = networks.add().network
        known = plugin.query_network(network, {})
        assert plugin.query_network(network, {"NO_SUCH_KEY": "1"}) == known
        with pytest.raises(InvalidArgument, match="PERF_COUNT"):
            plugin.query_network(network, {"PERF_COUNT": "maybe"})

    def test_a_query_leaves_the_network_as_it_was(self, plugin: Plugin) -> None:
        network = networks.relu_relu().network
        before = network.to_bytes()
        plugin.query_network(network, {})
        assert network.to_bytes() == before
