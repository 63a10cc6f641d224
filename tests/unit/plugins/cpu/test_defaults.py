"""A request may give another value for an input that has one in the network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument
from headrace.testing.case import network_of
from headrace.testing.infer_request import InferRequest

SCALED = "g (float[n,2] x, float[m] w) => (float[n,2] y) { y = Mul(x, w) }"
SHAPED = "g (float[n,2] x, int64[2] w) => (float[a,b] y) { y = Reshape(x, w) }"
X = np.ones((2, 2), np.float32)


def loaded(plugin: Plugin, text: str, value: Any, ir_version: int = 8) -> ExecutableNetwork:
    model = parse_model(f'<ir_version: {ir_version}, opset_import: ["": 17]> {text}')
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), "w"))
    return plugin.load_network(Load(network_of(model)))


def ask(network: ExecutableNetwork, **inputs: Any) -> Any:
    return InferRequest(network).infer(inputs)["y"]


@pytest.mark.parametrize("size", [2, 2048], ids=["small", "kept apart"])
def test_a_value_of_a_request_takes_the_place_of_the_networks_own(
    plugin: Plugin, size: int
) -> None:
    own = np.arange(size, dtype=np.float32)
    network = loaded(plugin, SCALED.replace("n,2", f"n,{size}"), own)
    x = np.ones((1, size), np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(ask(network, x=x), own[None])
        np.testing.assert_array_equal(ask(network, x=x, w=own + 5), own[None] + 5)
    assert [port.name for port in network.inputs] == ["x"]
    network.close()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.ones(1, np.float32), r"takes float32\[2\], not shape \[1\]"),
        (np.ones(2, np.float64), "takes float32"),
        (None, "must be given"),
    ],
)
def test_it_has_the_type_and_the_shape_of_the_networks_own(
    plugin: Plugin, value: Any, why: str
) -> None:
    network = loaded(plugin, SCALED, np.ones(2, np.float32))
    with pytest.raises(InvalidArgument, match=why):
        ask(network, x=X, w=value)
    network.close()


def test_a_value_that_decides_which_memory_a_run_touches_stays_the_networks_own(
    plugin: Plugin,
) -> None:
    network = loaded(plugin, SHAPED, np.array([4, 1]))
    assert ask(network, x=X).shape == (4, 1)
    with pytest.raises(InvalidArgument, match="no input 'w'"):
        ask(network, x=X, w=np.array([1, 4]))
    network.close()


def test_before_ir_version_4_initialisers_are_inputs_and_no_request_gives_them(
    plugin: Plugin,
) -> None:
    network = loaded(plugin, SCALED, np.full(2, 3, np.float32), ir_version=3)
    np.testing.assert_array_equal(ask(network, x=X), 3 * X)
    with pytest.raises(InvalidArgument, match="no input 'w'"):
        ask(network, x=X, w=np.ones(2, np.float32))
    network.close()
