"""A network cut into parts: what crosses the cut, what is repeated, and what is kept whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from headrace.plugins.hetero.planning.cut import cut
from headrace.plugins.hetero.planning.partition import Part
from headrace.runtime.network.network import Network, Port
from headrace.runtime.transform.transform import transform_network
from headrace.testing import networks
from headrace.testing.case import Case, parse


def prepared(case: Case) -> Network:
    """The network with its types, otherwise as it came."""
    return transform_network(case.network, common=False)


def pieces(network: Network, *parts: Sequence[str]) -> list[Network]:
    """The networks of parts that are given by their layers' names."""
    places = {node.name: at for at, node in enumerate(network.model.graph)}
    found = cut(network, [Part("A", tuple(places[name] for name in names)) for names in parts])
    for piece in found:
        onnx.checker.check_model(piece.network.to_bytes(), full_check=True)
    return [piece.network for piece in found]


def names(ports: Sequence[Port]) -> list[str]:
    return [port.name for port in ports]


def test_a_tensor_that_crosses_is_an_output_here_and_an_input_there() -> None:
    first, second = pieces(prepared(networks.relu_relu()), ["sum"], ["inner", "outer"])
    assert (names(first.inputs), names(first.outputs)) == (["x", "y"], ["a"])
    assert (names(second.inputs), names(second.outputs)) == (["a"], ["z"])
    assert first.outputs[0] == second.inputs[0]


def test_types_and_shapes_on_the_cut_are_inferred() -> None:
    network = prepared(networks.image())
    layers = [node.name or "" for node in network.model.graph]
    _, second = pieces(network, layers[:4], layers[4:])
    (port,) = second.inputs
    assert port.dtype is ir.DataType.FLOAT
    assert port.shape == ("N", 8, 8, 8)


def test_layers_keep_their_names() -> None:
    first, second = pieces(prepared(networks.relu_relu()), ["sum", "inner"], ["outer"])
    assert first.layer_names == ("sum", "inner")
    assert second.layer_names == ("outer",)


def test_a_tensor_read_by_two_parts_is_an_input_of_both() -> None:
    text = "t (float[2] x) => (float[2] y, float[2] z) { a = Abs(x) y = Neg(a) z = Relu(a) }"
    network = prepared(Case("t", parse(text), {}))
    first, second, third = pieces(network, ["a"], ["y"], ["z"])
    assert names(first.outputs) == ["a"]
    assert names(second.inputs) == names(third.inputs) == ["a"]


def test_an_output_of_the_network_that_another_part_reads_is_given_once() -> None:
    text = "t (float[2] x) => (float[2] y, float[2] z) { y = Abs(x) z = Neg(y) }"
    first, second = pieces(prepared(Case("t", parse(text), {})), ["y"], ["z"])
    assert names(first.outputs) == ["y"]
    assert (names(second.inputs), names(second.outputs)) == (["y"], ["z"])


def test_initialisers_go_with_every_reader_and_share_their_data() -> None:
    text = "t (float[2] x) => (float[2] y) { a = Add(x, w) y = Mul(a, w) }"
    network = prepared(Case("t", parse(text, {"w": networks.random(2)}), {}))
    found = pieces(network, ["a"], ["y"])
    tensor = network.model.graph.initializers["w"].const_value
    for piece in found:
        assert "w" not in names(piece.inputs)
        assert piece.model.graph.initializers["w"].const_value is tensor


def test_a_constant_is_repeated_where_it_is_read_and_never_cut() -> None:
    text = """t (float[2] x) => (float[1,2] y, float[1,2] z) {
        shape = Constant<value = int64[2] {1, 2}>()
        a = Abs(x)
        y = Reshape(a, shape)
        z = Reshape(x, shape)
    }"""
    first, second = pieces(prepared(Case("t", parse(text), {})), ["shape", "a", "y"], ["z"])
    assert names(second.inputs) == ["x"]
    assert "shape" in first.layer_names
    assert "shape" in second.layer_names


def test_a_constant_that_is_an_output_is_given_by_its_own_part_alone() -> None:
    text = """t (float[2] x) => (float c, float[2] y) {
        c = Constant<value = float {2}>()
        a = Add(x, c)
        y = Mul(a, c)
    }"""
    first, second = pieces(prepared(Case("t", parse(text), {})), ["c", "a"], ["y"])
    assert names(first.outputs) == ["c", "a"]
    assert (names(second.inputs), names(second.outputs)) == (["a"], ["y"])


def test_what_a_body_reads_from_around_it_is_an_input_of_its_part() -> None:
    first, second = pieces(prepared(networks.branch()), ["outside"], ["choose"])
    assert names(first.outputs) == ["a"]
    assert set(names(second.inputs)) == {"condition", "x", "a"}
    assert "choose/then_branch/times" in second.layer_names


def test_values_inside_a_body_stay_inside() -> None:
    network = prepared(networks.loop())
    (only,) = pieces(network, ["repeat"])
    assert set(names(only.inputs)) == {"times", "x"}
    assert "yes" in only.layer_names


def test_a_part_carries_the_functions_that_it_calls_and_no_others() -> None:
    text = """t (float[2] x) => (float[2] y) {
        [call] a = headrace.test.Outer(x)
        [plain] y = Neg(a)
    }
    <domain: "headrace.test", opset_import: ["": 21, "headrace.test": 1]>
    Inner (v) => (w) { w = Abs(v) }
    <domain: "headrace.test", opset_import: ["": 21, "headrace.test": 1]>
    Outer (v) => (w) { w = headrace.test.Inner(v) }"""
    first, second = pieces(prepared(Case("t", parse(text), {})), ["call"], ["plain"])
    assert {name for _, name, _ in first.model.functions} == {"Inner", "Outer"}
    assert not second.model.functions


def test_versions_are_kept() -> None:
    network = prepared(networks.relu_relu())
    for piece in pieces(network, ["sum"], ["inner", "outer"]):
        assert piece.model.ir_version == network.model.ir_version
        assert piece.model.opset_imports == network.model.opset_imports


def test_a_sequence_crosses_with_its_type() -> None:
    text = """t (float[2] x) => (float[2] y) {
        s = SequenceConstruct(x, x)
        at = Constant<value = int64 {1}>()
        y = SequenceAt(s, at)
    }"""
    first, second = pieces(prepared(Case("t", parse(text), {})), ["s"], ["y"])
    assert first.outputs[0].kind == second.inputs[0].kind == "sequence"


def test_an_input_with_a_default_is_no_input_of_a_part() -> None:
    text = "t (float[2] x, float[2] w) => (float[2] y) { a = Abs(x) y = Add(a, w) }"
    case = Case("t", parse(text, {"w": np.ones(2, np.float32)}), {})
    _, second = pieces(prepared(case), ["a"], ["y"])
    assert names(second.inputs) == ["a"]
    assert "w" in second.model.graph.initializers


def test_a_part_whose_results_nobody_reads_has_no_network() -> None:
    (only,) = pieces(prepared(networks.leftover()), ["unread"], ["read"])
    assert only.layer_names == ("read",)


def test_the_network_stays_as_it_was() -> None:
    network = prepared(networks.transformer())
    before = network.to_bytes()
    layers = [node.name or "" for node in network.model.graph]
    pieces(network, layers[:9], layers[9:])
    assert network.to_bytes() == before


def test_a_part_that_is_all_of_a_network_is_the_network() -> None:
    network = prepared(networks.relu_relu())
    (whole,) = pieces(network, ["sum", "inner", "outer"])
    assert whole is network
