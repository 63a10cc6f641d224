"""TEMPLATE's two transformations: what they change, what they leave, and what layers are called."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from headrace.plugins import template
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.network.network import Layer
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with services() as offered:
        yield template.create_plugin("TEMPLATE", offered, {})


def layers(plugin: Plugin, case: Case, **config: str) -> list[Layer]:
    return list(plugin.load_network(Load(case.network, config)).layers())


def operators(plugin: Plugin, case: Case, **config: str) -> list[str]:
    return [layer.op_type for layer in layers(plugin, case, **config)]


def test_a_floating_point_division_becomes_a_product_with_the_reciprocal(plugin: Plugin) -> None:
    operations = operators(plugin, networks.divide())
    assert operations.count("Mul") == operations.count("Reciprocal") == 1


def test_a_division_of_integers_stays(plugin: Plugin) -> None:
    case = networks.divide()
    assert operators(plugin, case).count("Div") == 1
    outputs = InferRequest(plugin.load_network(Load(case.network))).infer(case.inputs)
    assert np.array_equal(np.asarray(outputs["b"]), [3, -4])


def test_both_halves_of_a_decomposed_division_stand_for_it(plugin: Plugin) -> None:
    made = [layer for layer in layers(plugin, networks.divide()) if layer.op_type != "Div"]
    assert [layer.origins for layer in made] == [("float",), ("float",)]


def test_a_division_in_a_body_is_decomposed_as_well(plugin: Plugin) -> None:
    text = """inside (bool c, float[2] x) => (float[2] y) {
        y = If (c) <
            then_branch = yes () => (float[2] t) { [halve] t = Div(x, x) },
            else_branch = no () => (float[2] e) { [keep] e = Neg(x) }
        >
    }"""
    case = Case("inside", parse(text), {"c": np.array(True), "x": networks.random(2)})
    assert sorted(operators(plugin, case)) == ["If", "Mul", "Neg", "Reciprocal"]


def test_two_relus_in_a_row_become_one_that_stands_for_both(plugin: Plugin) -> None:
    relus = [layer for layer in layers(plugin, networks.relu_relu()) if layer.op_type == "Relu"]
    assert [set(layer.origins) for layer in relus] == [{"inner", "outer"}]


def test_three_relus_in_a_row_become_one(plugin: Plugin) -> None:
    text = """three (float[2] x) => (float[2] y) { a = Relu(x)
        b = Relu(a)
        y = Relu(b) }"""
    case = Case("three", parse(text), {"x": networks.random(2)})
    assert operators(plugin, case) == ["Relu"]


def test_a_relu_whose_result_is_needed_stays(plugin: Plugin) -> None:
    text = """both (float[2] x) => (float[2] a, float[2] y) { a = Relu(x)
        y = Relu(a) }"""
    case = Case("both", parse(text), {"x": networks.random(2)})
    assert operators(plugin, case) == ["Relu", "Relu"]


def test_neither_is_done_without_optional_transformations(plugin: Plugin) -> None:
    off = {"DISABLE_TRANSFORMATIONS": "YES"}
    assert operators(plugin, networks.relu_relu(), **off) == ["Add", "Relu", "Relu"]
    assert operators(plugin, networks.divide(), **off) == ["Div", "Div"]
