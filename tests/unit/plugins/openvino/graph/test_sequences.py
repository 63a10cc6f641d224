"""Layers over sequences that share their input."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest
from tests.support.openvino_alone import alone

GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
BESIDE = "t = Transpose<perm = [1, 0, 2]>(x) b = MatMul(t, k)"
FORMS = {
    "two": "b = {layer}<hidden_size = 8>(x, w2, r2)",
    "reverse": 'b = {layer}<hidden_size = 8, direction = "reverse">(x, w2, r2)',
    "beside_a_product": BESIDE,
}


def model_of(layer: str, form: str, batch: str) -> onnx.ModelProto:
    rows = GATES[layer] * 8
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "w": (1, rows, 8),
        "r": (1, rows, 8),
        "w2": (1, rows, 8),
        "r2": (1, rows, 8),
    }
    shapes["k"] = (8, 8)
    used = form.format(layer=layer)
    weights = {
        name: random.standard_normal(shape).astype(np.float32) / 3
        for name, shape in shapes.items()
        if name in ("w", "r") or f"{name})" in used or f"{name}," in used
    }
    sizes = "D,E,F" if form == BESIDE else "D,E,F,G"
    text = (
        f"g (float[3,{batch},8] x) => (float[3,1,C,8] a, float[{sizes}] b) {{"
        f" a = {layer}<hidden_size = 8>(x, w, r) {used} }}"
    )
    return parse(text, weights)


@pytest.mark.parametrize("batch", ["2", "N"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("layer", GATES)
def test_layers_that_read_one_sequence_are_right(
    plugin: Plugin, layer: str, form: str, batch: str
) -> None:
    x = np.random.default_rng(1).standard_normal((3, 2, 8)).astype(np.float32)
    case = Case("g", model_of(layer, form, batch), {"x": x})
    found = InferRequest(plugin.load_network(Load(case.network))).infer(case.inputs)
    for name, right in case.expected().items():
        assert np.asarray(found[name]) == pytest.approx(right, abs=1e-4)


@pytest.mark.parametrize("layer", GATES)
@pytest.mark.parametrize("wrong", [(1, 4, 2), (4, 2, 1), (2, 1, 4)], ids=str)
def test_states_of_another_shape_are_refused_however_many_elements_they_have(
    plugin: Plugin, layer: str, wrong: tuple[int, ...]
) -> None:
    rows = GATES[layer] * 4
    weights = {"w": np.ones((1, rows, 4), np.float32), "r": np.ones((1, rows, 4), np.float32)}
    text = (
        "g (float[S,B,4] x, float[D,C,H] h) => (float[E,P,F,G] y) {"
        f" y = {layer}<hidden_size = 4>(x, w, r, , , h) }}"
    )
    case = Case("g", parse(text, weights), {})
    request = InferRequest(plugin.load_network(Load(case.network)))
    feed = {"x": np.ones((3, 2, 4), np.float32), "h": np.ones((1, 2, 4), np.float32)}
    for _ in range(2):
        found, right = request.infer(feed)["y"], case.expected(feed)["y"]
        assert np.asarray(found) == pytest.approx(right, abs=1e-4)
        with pytest.raises(InvalidArgument, match="of another shape"):
            request.infer({**feed, "h": np.ones(wrong, np.float32)})


def test_openvino_alone_is_wrong_about_two_of_them() -> None:
    x = np.random.default_rng(1).standard_normal((3, 2, 8)).astype(np.float32)
    case = Case("g", model_of("LSTM", FORMS["two"], "2"), {"x": x})
    found = alone(case.model)(case.inputs)
    assert any(abs(found[name] - each).max() > 0.1 for name, each in case.expected().items())
