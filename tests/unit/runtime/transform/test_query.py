"""Which layers a device runs, told by the original network's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_ir import DataType

from headrace.runtime.errors import UnsupportedLayer
from headrace.runtime.intake.provenance import origins
from headrace.runtime.transform.options import InputOptions
from headrace.runtime.transform.query import QueryResult, query_network
from headrace.runtime.transform.transform import transform_network
from headrace.testing.case import network_of
from tests.support.model_zoo import branches, chain, image_network, model, node, value
from tests.support.random_networks import RULES, random_networks


def lacking(*ops: str) -> Callable[[ir.Node], str | None]:
    """A device that runs all operators but `ops`."""
    return lambda each: f"no {each.op_type}" if each.op_type in ops else None


def query(proto: Any, *ops: str, rules: bool = True, **inputs: InputOptions) -> QueryResult:
    original = network_of(proto)
    transformed = transform_network(
        original, preprocess=(inputs, {}), device_passes=[RULES] if rules else []
    )
    return query_network(original, transformed, lacking(*ops), "D")


def test_a_device_that_runs_all_supports_every_layer_by_its_original_name() -> None:
    result = query(image_network())
    names = network_of(image_network()).layer_names
    assert result.supported_layers == dict.fromkeys(names, "D")
    assert result.unsupported == []


def test_each_unsupported_layer_is_told_with_operator_and_reason() -> None:
    result = query(image_network(), "Add", "Gemm")
    assert result.unsupported == [
        UnsupportedLayer("s", "Add", "no Add", "D"),
        UnsupportedLayer("y", "Gemm", "no Gemm", "D"),
    ]
    assert "s" not in result.supported_layers


def test_a_layer_is_judged_by_what_it_becomes() -> None:
    divide = model([node("Div", ["x", "z"], ["y"])], [value("x"), value("z")], [value("y")])
    assert query(divide, "Div").unsupported == []
    assert query(divide, "Div", rules=False).supported_layers == {}


def test_a_layer_is_unsupported_if_a_part_of_what_it_becomes_is() -> None:
    divide = model([node("Div", ["x", "z"], ["y"])], [value("x"), value("z")], [value("y")])
    result = query(divide, "Reciprocal")
    assert result.unsupported == [UnsupportedLayer("y", "Div", "no Reciprocal", "D")]


def test_all_layers_of_a_fused_node_share_its_verdict() -> None:
    result = query(chain(), "Relu")
    assert [layer.layer for layer in result.unsupported] == ["a", "b", "y"]


def test_a_layer_that_became_nothing_is_supported() -> None:
    nodes = [node("Identity", ["x"], ["i"]), node("Relu", ["i"], ["y"])]
    result = query(model(nodes, [value("x")], [value("y")]), "Identity")
    assert result.supported_layers == {"i": "D", "y": "D"}


def test_a_constant_follows_its_readers() -> None:
    nodes = [
        node("Constant", [], ["k"], value_float=1.0),
        node("Add", ["x", "k"], ["a"]),
        node("Exp", ["a"], ["y"]),
    ]
    proto = model(nodes, [value("x")], [value("y")])
    assert "k" in query(proto, "Exp").supported_layers
    dropped = {layer.layer: layer.reason for layer in query(proto, "Add").unsupported}
    assert "only unsupported layers" in dropped["k"]


def test_a_layer_with_bodies_is_run_only_with_all_in_them() -> None:
    result = query(branches(), "Relu")
    reasons = {layer.layer: layer.reason for layer in result.unsupported}
    assert reasons == {
        "if": "its body holds if/then_branch/t (Relu): no Relu",
        "if/then_branch/t": "no Relu",
        "if/else_branch/e": "inside if (If), which is not run",
    }
    assert result.supported_layers == {"h": "D"}


def test_nothing_in_the_bodies_of_an_unsupported_layer_is_supported() -> None:
    result = query(branches(), "If")
    assert result.supported_layers == {"h": "D"}
    assert len(result.unsupported) == 3


def test_ends_and_weights_are_told_apart_from_layers_and_follow_their_neighbours() -> None:
    result = query(image_network(), "Gemm")
    assert set(result.housekeeping) == {"x", "w1", "b1", "w2"}
    assert set(query(image_network()).housekeeping) == {"x", "w1", "b1", "w2", "w3", "b3", "y"}
    assert not result.housekeeping.keys() & result.supported_layers.keys() - {"y"}


def test_preprocessing_that_the_device_does_not_run_is_told() -> None:
    result = query(image_network(), "Cast", x=InputOptions(dtype=DataType.UINT8))
    assert [layer.op_type for layer in result.unsupported] == ["Cast"]
    assert len(result.supported_layers) == len(network_of(image_network()).layers)


def test_the_device_is_asked_once_about_each_node() -> None:
    original = network_of(branches())
    transformed = transform_network(original)
    asked: list[str | None] = []

    def support(each: ir.Node) -> None:
        asked.append(each.name)

    query_network(original, transformed, support, "D")
    assert sorted(map(str, asked)) == sorted(transformed.layer_names)


@settings(deadline=None)
@given(random_networks(), st.sets(st.sampled_from(["Relu", "Mul", "Reciprocal", "Add", "Neg"])))
def test_the_verdicts_part_the_layers_and_agree_with_the_device(proto: Any, ops: set[str]) -> None:
    original = network_of(proto)
    transformed = transform_network(original, device_passes=[RULES])
    result = query_network(original, transformed, lacking(*ops), "D")
    refused = [layer.layer for layer in result.unsupported]
    assert sorted([*result.supported_layers, *refused]) == sorted(original.layer_names)
    for each in transformed.nodes():
        if each.op_type in ops:
            assert not set(origins(each)) & result.supported_layers.keys()


def test_a_large_network_is_queried_in_one_pass() -> None:
    nodes = [node("Relu", [f"v{at}"], [f"v{at + 1}"]) for at in range(3000)]
    weights = {"w": np.zeros(1, np.float32)}
    proto = model(nodes, [value("v0")], [value("v3000")], weights)
    assert len(query(proto, rules=False).supported_layers) == 3000
