"""A request to a virtual device may replace a value of the network, where a device can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from headrace.plugins import auto, batch, cpu, hetero, multi, template
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing.case import network_of
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services as real_services
from tests.support.patience import PATIENCE_SECONDS

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,2] x, float[2] w) => (float[n,2] y) { [scale] t = Mul(x, w) [shift] y = Add(t, w) }"""
X = np.array([[1, 2], [3, 4]], np.float32)
OWN, OTHER = np.array([2, 3], np.float32), np.array([5, 7], np.float32)


@pytest.fixture
def services() -> Iterator[Services]:
    sources = [
        PluginSource("CPU", lambda: cpu.create_plugin),
        PluginSource("TEMPLATE", lambda: template.create_plugin),  # which can replace none
        PluginSource("AUTO", lambda: auto.create_plugin),
        PluginSource("BATCH", lambda: batch.create_plugin),
        PluginSource("HETERO", lambda: hetero.create_plugin),
        PluginSource("MULTI", lambda: multi.create_plugin),
    ]
    with real_services(sources) as offered:
        yield offered


def load(services: Services, device: str, **affinities: str) -> ExecutableNetwork:
    model = parse_model(TEXT)
    model.graph.initializer.append(numpy_helper.from_array(OWN, "w"))
    name = DeviceName.parse(device)
    options = NetworkOptions(members=name.members, affinities=affinities)
    network = network_of(model)
    return services.devices.plugin(name.type).load_network(Load(network, options=options))


def ask(network: ExecutableNetwork, **inputs: Any) -> Any:
    return InferRequest(network).infer(inputs)["y"]


@pytest.mark.parametrize(
    "device",
    [
        "AUTO:CPU,TEMPLATE",
        "AUTO:TEMPLATE,CPU",
        "BATCH:CPU(4)",
        "HETERO:CPU,TEMPLATE",
        "MULTI:CPU,TEMPLATE",
        "MULTI:TEMPLATE,CPU",
    ],
)
def test_a_value_of_a_request_takes_the_place_of_the_networks_own(
    services: Services, device: str
) -> None:
    network = load(services, device)
    for _ in range(3):
        np.testing.assert_array_equal(ask(network, x=X), X * OWN + OWN)
        np.testing.assert_array_equal(ask(network, x=X, w=OTHER), X * OTHER + OTHER)
    network.close()


def test_requests_with_values_of_their_own_run_beside_a_batch(services: Services) -> None:
    network = load(services, "BATCH:CPU(4)")
    requests = [InferRequest(network) for _ in range(12)]
    for at, request in enumerate(requests):
        request.start_async({"x": X, "w": OWN + at} if at % 2 else {"x": X})
    for at, request in enumerate(requests):
        own = OWN + at if at % 2 else OWN
        np.testing.assert_array_equal(
            np.asarray(request.result(PATIENCE_SECONDS)["y"]), X * own + own
        )
    network.close()


def test_what_a_part_of_the_network_cannot_replace_no_request_may_give(services: Services) -> None:
    network = load(services, "HETERO:CPU,TEMPLATE", shift="TEMPLATE")
    np.testing.assert_array_equal(ask(network, x=X), X * OWN + OWN)
    with pytest.raises(InvalidArgument, match="no input 'w'"):
        ask(network, x=X, w=OTHER)
    network.close()
