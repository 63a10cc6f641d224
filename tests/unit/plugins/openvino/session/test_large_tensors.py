"""Tensors that are larger than any that OpenVINO can be asked for."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import HeadraceError
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest

SIZES = np.array([*[2] * 9, 2**30, 2**10, 1])
NETWORKS = {
    "Expand": "g (float[A,B] x) => (float y) { y = Expand(x, s) }",
    "Expand of a constant": "g (float[A] x) => (float y) { c = Expand(t, s) y = Add(c, x) }",
    "ConstantOfShape": "g (float[A] x) => (float y) { c = ConstantOfShape(s) y = Add(c, x) }",
    "Tile": "g (float[1,1,1,1,1,1,1,1,1,1,1,A] x) => (float y) { y = Tile(x, s) }",
    "an input": "g (float[65536,65536,A] x, float[A] z) => (float y) { y = Add(x, z) }",
}
PROGRAM = """
import numpy, openvino
from openvino import opset13
data = openvino.op.Parameter(openvino.Type.f32, openvino.PartialShape([-1, -1]))
sizes = opset13.constant(numpy.array({sizes}))
made = opset13.broadcast(data, sizes, broadcast_spec="BIDIRECTIONAL")
openvino.Core().compile_model(openvino.Model([made], [data]), "CPU")
"""


@pytest.mark.parametrize("name", NETWORKS)
def test_a_tensor_that_cannot_be_is_refused(plugin: Plugin, name: str) -> None:
    weights = {"s": SIZES, "t": np.ones(1, np.float32)}
    text = NETWORKS[name]
    model = parse(
        text,
        {key: each for key, each in weights.items() if f"{key})" in text or f"({key}," in text},
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    network = Case("g", model, {}).network
    refused = plugin.query_network(network, {}).unsupported
    assert any("more than 2,147,483,647 elements" in each.reason for each in refused)
    with pytest.raises(HeadraceError, match="more than 2,147,483,647 elements"):
        plugin.load_network(Load(network))


def test_a_tensor_without_elements_may_have_large_sizes(plugin: Plugin) -> None:
    text = "g (float[A] x) => (float[65536,65536,0] y) { c = ConstantOfShape(s) y = Add(c, x) }"
    case = Case("g", parse(text, {"s": np.array([65536, 65536, 0])}), {})
    request = InferRequest(plugin.load_network(Load(case.network)))
    found = np.asarray(request.infer({"x": np.ones(1, np.float32)})["y"])
    assert found.shape == (65536, 65536, 0)


def test_openvino_alone_ends_the_process() -> None:
    program = PROGRAM.format(sizes=SIZES.tolist())
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode < 0
