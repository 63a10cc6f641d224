"""Performance counts: what each layer cost, in terms of the network as it was loaded."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import InvalidArgument
from headrace.testing import networks
from headrace.testing.infer_request import InferRequest
from headrace.testing.suite.fixtures import DeviceFixtures, Loader


class ProfilingConformance(DeviceFixtures):
    def test_with_perf_count_every_request_is_measured(self, load: Loader) -> None:
        case = networks.mlp()
        network = load(case, {"PERF_COUNT": "YES"})
        request = InferRequest(network)
        start = time.monotonic()
        request.infer(case.inputs)
        total = time.monotonic() - start
        counts = request.performance_counts
        assert counts
        assert all(count.seconds >= 0 for count in counts)
        assert sum(count.seconds for count in counts) <= total
        assert network.last_profile == tuple(counts)

    def test_a_request_can_ask_for_it(
        self, load: Loader, new_request: Callable[[ExecutableNetwork], InferRequest]
    ) -> None:
        case = networks.mlp()
        request = new_request(load(case, {"PERF_COUNT": "NO"}))
        request.start_async(case.inputs)
        request.result()
        assert not request.performance_counts
        request.start_async(case.inputs, profile=True)
        request.result()
        assert request.performance_counts

    def test_a_request_that_asks_for_it_is_refused_as_any_other(
        self, load: Loader, new_request: Callable[[ExecutableNetwork], InferRequest]
    ) -> None:
        case = self.fragile
        request = new_request(load(case))
        request.start_async({**case.inputs, **self.breaking}, profile=True)
        with pytest.raises(InvalidArgument):
            request.result()

    def test_the_counts_name_layers_and_where_they_came_from(self, load: Loader) -> None:
        case = networks.mlp()
        network = load(case, {"PERF_COUNT": "YES"})
        request = InferRequest(network)
        request.infer(case.inputs)
        layers = {layer.name for layer in network.layers()}
        originals = set(case.network.layer_names)
        for count in request.performance_counts:
            assert count.layer in layers
            assert count.device
            assert count.op_type
            assert set(count.origins) <= originals
        assert any(count.origins for count in request.performance_counts)

    def test_control_flow_is_measured_with_its_bodies(self, load: Loader) -> None:
        case = networks.loop()
        network = load(case, {"PERF_COUNT": "YES"})
        request = InferRequest(network)
        start = time.monotonic()
        request.infer(case.inputs)
        total = time.monotonic() - start
        assert sum(count.seconds for count in request.performance_counts) <= total
        names = [count.layer for count in request.performance_counts]
        assert len(names) == len(set(names))

    def test_the_executable_graph_stands_for_the_network(self, load: Loader) -> None:
        case = networks.mlp()
        network = load(case)
        originals = set(case.network.layer_names)
        for layer in network.layers():
            assert layer.device
            assert set(layer.origins) <= originals
