"""Shapes that a network proves."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from headrace.plugins.cpu.graph.proven_shapes import ProvenShapes
from headrace.runtime.network.network import Network
from headrace.runtime.transform.transform import transform_network
from headrace.testing import networks
from headrace.testing.case import Case, parse

CASES = (
    networks.image(),
    networks.transformer(),
    networks.recurrent(),
    networks.reshape(),
    networks.leftover(),
    networks.relu_relu(),
    networks.scatter(),
)


def transformed(text: str) -> Network:
    return transform_network(Network.from_bytes(parse(text).SerializeToString()))


def proven(model: ir.Model, *, are_inferred: bool) -> dict[str, object]:
    shapes = ProvenShapes(model, are_inferred=are_inferred)
    made = [value for node in model.graph.all_nodes() for value in node.outputs]
    return {value.name or "": shapes.dimensions(value) for value in [*model.graph.inputs, *made]}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shapes_that_were_inferred_are_those_that_the_network_proves(case: Case) -> None:
    network = transform_network(Network.from_bytes(case.model.SerializeToString()))
    assert network.shapes_are_inferred
    expected = proven(network.model, are_inferred=False)
    assert proven(network.model, are_inferred=True) == expected


def test_finding_out_changes_no_declared_shape() -> None:
    model = transformed("f (float[N, 2] x) => (float[3, 2] y) { z = Abs(x) y = Neg(z) }").model
    shapes = ProvenShapes(model, are_inferred=True)
    assert shapes.sizes(model.graph.outputs[0]) == [None, 2]
    assert model.graph.outputs[0].shape == [3, 2]
    assert shapes.outputs() == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        # The shape of a value inside is only declared.
        "f (float[N] x) => (float[N] y) <float[3] z> { z = Abs(x) y = Neg(z) }",
        # Another layer reads the output.
        "f (float[N] x) => (float[3] z, float[N] y) { z = Abs(x) y = Neg(z) }",
        # The Identity goes, and another layer reads what it read.
        "f (float[N] x) => (float[3] y, float[N] w) { z = Abs(x) y = Identity(z) w = Neg(z) }",
    ],
)
def test_a_shape_that_is_only_declared_proves_nothing(text: str) -> None:
    network = transformed(text)
    assert not network.shapes_are_inferred
    assert all(
        shape in (None, ["N"]) for shape in proven(network.model, are_inferred=False).values()
    )


@pytest.mark.parametrize("last", ["y = Neg(z)", "w = Neg(z) y = Identity(w)"])
def test_a_network_that_declares_only_its_inputs_and_outputs_has_inferred_shapes(last: str) -> None:
    network = transformed(f"f (float[N] x) => (float[3] y) {{ z = Abs(x) {last} }}")
    assert network.shapes_are_inferred
    assert set(map(str, proven(network.model, are_inferred=True).values())) == {"['N']"}
