"""Loading, exporting and importing networks."""

from __future__ import annotations

from contextlib import suppress

import pytest

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import Cancelled, Unavailable, UnsupportedLayers
from headrace.runtime.execution.cancel import CancelToken
from headrace.testing import networks
from headrace.testing.infer_request import InferRequest
from headrace.testing.suite.fixtures import DeviceFixtures, Loader


class LoadConformance(DeviceFixtures):
    def test_a_network_keeps_its_inputs_and_outputs(self, load: Loader) -> None:
        case = networks.mlp()
        network, original = load(case), case.network
        assert [port.name for port in network.inputs] == [port.name for port in original.inputs]
        assert network.inputs == original.inputs
        assert network.outputs == original.outputs

    def test_one_network_object_can_be_loaded_twice_and_stays_as_it_was(
        self, plugin: Plugin, load: Loader
    ) -> None:
        case = networks.relu_relu()
        network = case.network
        before = network.to_bytes()
        first = load.keep(plugin.load_network(Load(network)))
        second = load.keep(plugin.load_network(Load(network)))
        assert network.to_bytes() == before
        self.check(first, case)
        self.check(second, case)

    def test_a_load_lists_every_unsupported_layer(self, plugin: Plugin) -> None:
        with pytest.raises(UnsupportedLayers, match="strange") as caught:
            plugin.load_network(Load(networks.unknown_operators().network))
        listed = {layer.layer: layer.op_type for layer in caught.value.layers}
        assert listed == {"strange": "Strange", "stranger": "Stranger"}
        assert all(layer.reason for layer in caught.value.layers)

    def test_a_load_without_optional_transformations_gives_the_same(self, load: Loader) -> None:
        case = networks.relu_relu()
        self.check(load(case, {"DISABLE_TRANSFORMATIONS": "YES"}), case)

    def test_a_load_that_is_cancelled_leaves_the_device_as_it_was(
        self, plugin: Plugin, load: Loader
    ) -> None:
        case, token = networks.add(), CancelToken()
        token.cancel(Cancelled("not wanted any more"))
        with suppress(Cancelled):  # or it was too quick
            load.keep(plugin.load_network(Load(case.network, token=token)))
        self.check(load(case), case)

    def test_a_closed_network_takes_no_requests(self, load: Loader) -> None:
        case = networks.add()
        network = load(case)
        network.close()
        with pytest.raises(Unavailable):
            InferRequest(network).start_async(case.inputs)
        network.close()

    def test_closing_one_network_leaves_the_others_alone(self, load: Loader) -> None:
        case = networks.mlp()
        first, second = load(case), load(case)
        first.close()
        self.check(second, case)

    def test_an_exported_network_is_the_same_after_its_import(
        self, plugin: Plugin, load: Loader
    ) -> None:
        case = networks.mlp()
        exported = load(case)
        native = exported.export()
        imported = load.keep(plugin.load_network(Load(case.network, native=native)))
        exported.close()
        assert imported.inputs == exported.inputs
        assert imported.outputs == exported.outputs
        self.check(imported, case)

    def test_an_import_without_native_bytes_compiles_anew(
        self, plugin: Plugin, load: Loader
    ) -> None:
        case = networks.mlp()
        self.check(load.keep(plugin.load_network(Load(case.network))), case)

    def test_the_configuration_of_an_import_is_its_own(self, plugin: Plugin, load: Loader) -> None:
        case = networks.mlp()
        native = load(case, {"PERF_COUNT": "NO"}).export()
        imported = load.keep(
            plugin.load_network(Load(case.network, {"PERF_COUNT": "YES"}, native=native))
        )
        request = InferRequest(imported)
        request.infer(case.inputs)
        assert request.performance_counts

    def test_networks_can_be_loaded_and_closed_again_and_again(self, load: Loader) -> None:
        case = networks.add()
        for _ in range(5):
            network = load(case)
            self.check(network, case)
            network.close()
