"""What a real GPU computes, beside CPU: `make test-cuda`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.plugins import cpu, cuda
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.testing import networks
from headrace.testing.case import Case, network_of, parse
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services
from tools.benchmark.resnet50 import resnet50

TOLERANCE = 1e-3
FIXED = (
    Case(
        "sums",
        parse("s (float[64,128] x, float[64,128] y) => (float[64,128] z) { z = Add(x, y) }"),
        {"x": networks.random(64, 128), "y": networks.random(64, 128)},
    ),
    Case(
        "products",
        parse("p (float[32,96] x, float[96,48] y) => (float[32,48] z) { z = MatMul(x, y) }"),
        {"x": networks.random(32, 96), "y": networks.random(96, 48)},
    ),
)


@pytest.fixture
def offered() -> Iterator[Services]:
    with services() as made:
        yield made


@pytest.fixture
def device(offered: Services) -> Plugin:
    return cuda.create_plugin("CUDA", offered, {})


def loaded(plugin: Plugin, model: onnx.ModelProto, **config: str) -> ExecutableNetwork:
    return plugin.load_network(Load(network_of(model), config))


def infer(network: ExecutableNetwork, **inputs: Any) -> dict[str, Any]:
    return dict(InferRequest(network).infer(inputs))


def image(batch: int) -> Any:
    return np.random.default_rng(batch).random((batch, 3, 224, 224), np.float32)


@pytest.mark.parametrize(
    ("batch", "config"),
    [(1, {}), (4, {}), (1, {"CUDA_GRAPH": "YES"}), (4, {"CUDA_GRAPH": "YES"})],
)
def test_resnet50_is_right_to_a_thousandth(
    offered: Services, device: Plugin, batch: int, config: dict[str, str]
) -> None:
    model, x = resnet50(batch), image(batch)
    expected = infer(loaded(cpu.create_plugin("CPU", offered, {}), model), x=x)["y"]
    network = loaded(device, model, **config)
    for _ in range(4):  # a run is recorded only after some
        found = infer(network, x=x)["y"]
        assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize(
    ("config", "streams"), [({}, "4"), ({"CUDA_GRAPH": "YES"}, "1")], ids=["staged", "recorded"]
)
def test_requests_on_two_networks_at_once_get_their_own_outputs(
    device: Plugin, config: dict[str, str], streams: str
) -> None:
    device.set_config({"NUM_STREAMS": streams})  # runs that are recorded bear no other beside them
    both = [(case, device.load_network(Load(case.network, config))) for case in FIXED]

    def run(turn: int) -> None:
        case, network = both[turn % 2]
        inputs = {
            name: (np.asarray(value) * (1 + turn % 7)).astype(np.float32)
            for name, value in case.inputs.items()
        }
        assert_same_outputs(InferRequest(network).infer(inputs), case.expected(inputs), TOLERANCE)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(run, range(128)))


def test_memory_is_shown_and_given_back(device: Plugin) -> None:
    network = loaded(device, resnet50())
    assert device.memory_bytes("0") >= network.network.weight_bytes
    infer(network, x=image(1))
    network.close()


def test_it_works_in_a_process_of_its_own(offered: Services) -> None:
    plugin = IsolatedPlugin("CUDA", offered, {}, "headrace.plugins.cuda:create_plugin")
    try:
        case = networks.image()
        outputs = InferRequest(plugin.load_network(Load(case.network))).infer(case.inputs)
        assert_same_outputs(outputs, case.expected(), TOLERANCE)
    finally:
        plugin.close()


def test_tensorrt_is_right_where_it_is_installed(device: Plugin) -> None:
    case = networks.image()
    try:
        network = device.load_network(Load(case.network, {"EXECUTION_PROVIDER": "TENSORRT"}))
    except FailedPrecondition as error:
        pytest.skip(error.message)
    outputs = InferRequest(network).infer(case.inputs)
    assert_same_outputs(outputs, case.expected(), TOLERANCE)
