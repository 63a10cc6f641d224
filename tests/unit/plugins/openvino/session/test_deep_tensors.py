"""Tensors of more than six axes.

OpenVINO alone computes a part of them, which is tested too, so that a rule without which nothing is
wrong any more is found out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import UnsupportedLayers
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest
from tests.support.openvino_alone import alone

LAYERS = {
    "sum": "Add({0}, {0})",
    "largest": "Max({0}, {0})",
    "relu": "Relu({0})",
    "exp": "Exp({0})",
    "clip": "Clip({0}, one)",
    "truth": "Greater({0}, one)",
    "choice": "Where(yes, {0}, one)",
    "softmax": "Softmax({0})",
    "norm": "LayerNormalization({0}, row)",
}
MOVING = {
    "transpose": "Transpose({0})",
    "reshape": "Reshape({0}, sizes)",
    "concat": "Concat<axis = 1>({0}, {0})",
    "slice": "Slice({0}, place, end, place)",
    "sum": "ReduceSum<keepdims = 1>({0}, place)",
    "gather": "Gather({0}, place)",
}
AXES = "A,B,C,D,E,F"


def case_of(layer: str, x: str = AXES, z: str = f"{AXES},G") -> Case:
    """The layer twice: of six axes, and of seven."""
    known: dict[str, Any] = {"one": np.float32(1), "row": np.ones(4, np.float32)}
    known |= {"sizes": np.array([-1]), "place": np.array([0]), "end": np.array([1])}
    condition = ", bool yes" if "yes" in layer else ""
    kind = "bool" if "Greater" in layer else "float"
    rows = "4" if "Norm" in layer else ""
    x, z = (axes[:-1] + rows if rows else axes for axes in (x, z))
    made = (1, 1) if "Reshape" in layer else (6, 7)
    first, second = (
        ",".join(f"{name}{at}" for at in range(count))
        for name, count in zip("PQ", made, strict=True)
    )
    text = (
        f"g (float[{x}] x, float[{z}] z{condition}) => ({kind}[{first}] a, {kind}[{second}] b) {{"
        f" a = {layer.format('x')} b = {layer.format('z')} }}"
    )
    used = {
        name: each for name, each in known.items() if f" {name}" in layer or f"({name}" in layer
    }
    given = {"yes": np.array(True)} if condition else {}
    return Case("g", parse(text, used), feed() | given)


def feed() -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = {"x": (1, 3, 1, 1, 3, 4), "z": (2, 3, 2, 1, 2, 3, 4)}
    return {name: random.random(shape, np.float32) + 0.5 for name, shape in shapes.items()}


def agrees(found: Any, right: Any) -> bool:
    same = found.shape == right.shape
    return same and np.allclose(found, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_layer_of_many_axes_of_unknown_sizes_is_refused(plugin: Plugin, layer: str) -> None:
    network = case_of(layer).network
    (refused,) = plugin.query_network(network, {}).unsupported
    assert "more than 6 axes" in refused.reason
    with pytest.raises(UnsupportedLayers, match="more than 6 axes"):
        plugin.load_network(Load(network))


@pytest.mark.parametrize("layer", MOVING.values(), ids=MOVING)
def test_a_layer_that_moves_elements_may_have_many_axes(plugin: Plugin, layer: str) -> None:
    case = case_of(layer)
    request = InferRequest(plugin.load_network(Load(case.network)))
    for _ in range(2):
        found = request.infer(case.inputs)
        assert all(agrees(np.asarray(found[name]), each) for name, each in case.expected().items())


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("x", [AXES, "1,3,1,1,3,4"])
def test_a_layer_of_many_axes_of_known_sizes_is_right(plugin: Plugin, layer: str, x: str) -> None:
    case = case_of(layer, x, "2,3,2,1,2,3,4")
    request = InferRequest(plugin.load_network(Load(case.network)))
    for _ in range(2):
        found = request.infer(case.inputs)
        assert all(agrees(np.asarray(found[name]), each) for name, each in case.expected().items())


@pytest.mark.parametrize("name", ["sum", "largest", "relu", "exp"])
def test_openvino_alone_computes_a_part_of_it(name: str) -> None:
    case = case_of(LAYERS[name])
    found = alone(case.model)(case.inputs)
    assert not agrees(found["b"], case.expected()["b"])
