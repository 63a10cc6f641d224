"""The graph that a query may bring: layers, what they read and make, and a bound on it."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network import graph as module
from headrace.runtime.network.graph import graph_of
from headrace.runtime.network.network import Network
from headrace.testing.case import network_of

CHAIN = """
<ir_version: 10, opset_import: ["" : 18]>
chain (float[n, 4] x) => (float[n, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}>
{
   h = MatMul(x, w)
   y = Relu(h)
}
"""
BRANCH = """
<ir_version: 10, opset_import: ["" : 18]>
branch (float[2] x, bool c) => (float[2] y)
{
   a = Abs(x)
   y = If(c) <
      then_branch = t () => (float[2] p) { q = Neg(a)  p = Add(q, x) },
      else_branch = e () => (float[2] r) { r = Identity(x) }
   >
}
"""


def network(text: str) -> Network:
    return network_of(onnx.parser.parse_model(text))


def test_layers_come_in_order_with_their_devices() -> None:
    graph = graph_of(network(CHAIN), {"h": "A"})
    assert [(layer.name, layer.op_type, layer.device) for layer in graph.layers] == [
        ("h", "MatMul", "A"),
        ("y", "Relu", ""),
    ]
    assert [(layer.inputs, layer.outputs) for layer in graph.layers] == [
        (("x", "w"), ("h",)),
        (("h",), ("y",)),
    ]


def test_tensors_that_the_model_does_not_describe_have_types_and_shapes() -> None:
    graph = graph_of(network(CHAIN), {})
    (hidden, _) = graph.tensors
    assert (hidden.name, hidden.dtype.name, hidden.shape) == ("h", "FLOAT", ("n", 2))
    assert [port.name for port in graph.inputs] == ["x"]
    assert [port.name for port in graph.outputs] == ["y"]


def test_the_network_itself_stays_as_it_was() -> None:
    given = network(CHAIN)
    before = given.to_bytes()
    graph_of(given, {})
    assert given.to_bytes() == before


def test_a_layer_reads_what_its_bodies_read_from_outside() -> None:
    graph = graph_of(network(BRANCH), {})
    assert [layer.name for layer in graph.layers] == ["a", "y"]
    assert graph.layers[1].inputs == ("c", "a", "x")


def test_names_beyond_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHARACTERS", 9)
    graph_of(network(CHAIN), {})
    monkeypatch.setattr(module, "MAX_CHARACTERS", 8)
    with pytest.raises(InvalidArgument, match="8 characters") as caught:
        graph_of(network(CHAIN), {})
    assert caught.value.field == "graph"
