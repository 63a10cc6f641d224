"""Transformations, and which original layers a node stands for after them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx_ir.passes.common import InlinePass

from headrace.runtime.errors import Internal, InvalidModel
from headrace.runtime.intake.naming import walk
from headrace.runtime.network.network import Network
from headrace.runtime.transform.functions import inline_functions
from headrace.runtime.transform.transform import origins, transform_network
from headrace.testing.case import network_of, parse
from tests.support.gate import run_together
from tests.support.interleaving import frequent_switches
from tests.support.model_zoo import (
    FLOAT,
    INT64,
    attention_network,
    branches,
    chain,
    function,
    graph,
    image_network,
    model,
    node,
    run,
    value,
)
from tests.support.random_networks import RULES, random_networks


def by_op(it: Network) -> dict[str, set[str]]:
    """Operator to the original layers that its nodes stand for."""
    found: dict[str, set[str]] = {}
    for layer in it.layers:
        found.setdefault(layer.op_type, set()).update(layer.origins)
    return found


def inputs_of(proto: Any, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for port in network_of(proto).inputs:
        shape = [size if isinstance(size, int) else 2 for size in port.shape or ()]
        array = random.standard_normal(shape)
        feeds[port.name] = array > 0 if port.dtype == ir.DataType.BOOL else array.astype(np.float32)
    return feeds


def test_without_anything_to_do_each_node_stands_for_itself() -> None:
    it = transform_network(network_of(image_network()), common=False)
    assert all(layer.origins == (layer.name,) for layer in it.layers)


def test_the_original_is_not_touched() -> None:
    it = network_of(chain())
    before = it.to_bytes()
    transform_network(it, device_passes=[RULES])
    assert it.to_bytes() == before


def test_an_eliminated_identity_lives_on_in_what_now_gives_its_value() -> None:
    it = transform_network(network_of(chain()))
    assert [layer.op_type for layer in it.layers] == ["Relu", "Relu"]
    assert it.layers[0].origins == ("a", "b")


def test_fused_layers_are_one_node_of_both_origins() -> None:
    it = transform_network(network_of(chain()), device_passes=[RULES])
    assert by_op(it) == {"Relu": {"a", "b", "y"}}
    assert [port.name for port in it.outputs] == ["y"]


def test_rules_serve_two_threads_at_a_time() -> None:
    def transform() -> None:
        for _ in range(20):
            it = transform_network(network_of(chain()), device_passes=[RULES])
            assert [layer.op_type for layer in it.layers] == ["Relu"]

    with frequent_switches():
        run_together(transform, transform)


def test_rules_keep_nothing_of_a_network_that_is_gone() -> None:
    it = transform_network(network_of(chain()), device_passes=[RULES])
    gone = weakref.ref(it.model.graph)
    del it
    gc.collect()
    assert gone() is None


def test_all_nodes_of_a_decomposed_layer_stand_for_it() -> None:
    nodes = [node("Div", ["x", "z"], ["d"]), node("Div", ["d", "z"], ["y"])]
    it = network_of(model(nodes, [value("x"), value("z")], [value("y")]))
    transformed = transform_network(it, device_passes=[RULES])
    assert sorted((layer.op_type, layer.origins) for layer in transformed.layers) == [
        ("Mul", ("d",)),
        ("Mul", ("y",)),
        ("Reciprocal", ("d",)),
        ("Reciprocal", ("y",)),
    ]


def test_a_check_sees_types_that_the_network_does_not_declare() -> None:
    nodes = [
        node("Cast", ["x"], ["i"], to=INT64),
        node("Div", ["i", "i"], ["q"]),
        node("Cast", ["q"], ["y"], to=FLOAT),
    ]
    given = network_of(model(nodes, [value("x")], [value("y")]))
    it = transform_network(given, device_passes=[RULES])
    assert "Div" in by_op(it)


def test_rules_reach_into_bodies() -> None:
    then = graph([node("Relu", ["x"], ["r"]), node("Relu", ["r"], ["t"])], outputs=[value("t")])
    other = graph([node("Neg", ["x"], ["e"])], outputs=[value("e")])
    nodes = [node("If", ["flag"], ["y"], name="if", then_branch=then, else_branch=other)]
    inputs = [value("x"), value("flag", (), TensorProto.BOOL)]
    it = transform_network(network_of(model(nodes, inputs, [value("y")])), device_passes=[RULES])
    assert by_op(it)["Relu"] == {"if/then_branch/r", "if/then_branch/t"}


def test_inlined_functions_stand_for_their_call() -> None:
    twice = function("twice", [node("Relu", ["a"], ["m"]), node("Neg", ["m"], ["b"])])
    nodes = [node("twice", ["x"], ["y"], domain="f", name="call")]
    proto = model(nodes, [value("x")], [value("y")], functions=[twice], domains=["f"])
    inline = InlinePass()
    it = transform_network(
        network_of(proto), device_passes=[lambda inner: bool(inline(inner).modified)]
    )
    assert by_op(it) == {"Relu": {"call"}, "Neg": {"call"}}


def add_cast_after(op_type: str) -> Callable[[ir.Model], bool]:
    def insert(inner: ir.Model) -> bool:
        for each in list(inner.graph):
            if each.op_type == op_type:
                cast = ir.node("Cast", [each.outputs[0]], {"to": FLOAT})
                each.outputs[0].replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
                cast.replace_input_with(0, each.outputs[0])
                inner.graph.insert_after(each, cast)
        return True

    return insert


def test_a_node_put_between_two_layers_stands_for_its_reader() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"])]
    it = network_of(model(nodes, [value("x")], [value("y")]))
    transformed = transform_network(it, device_passes=[add_cast_after("Relu")])
    assert by_op(transformed) == {"Relu": {"a"}, "Cast": {"y"}, "Neg": {"y"}}


def test_a_node_put_before_an_output_stands_for_what_it_reads() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"])]
    it = network_of(model(nodes, [value("x")], [value("y")]))
    transformed = transform_network(it, device_passes=[add_cast_after("Neg")])
    assert by_op(transformed)["Cast"] == {"y"}


def test_an_output_that_a_pass_gave_another_value_keeps_its_name() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["y"], ["z"])]
    it = network_of(model(nodes, [value("x")], [value("y"), value("z")]))
    transformed = transform_network(it, device_passes=[add_cast_after("Relu")])
    assert [port.name for port in transformed.outputs] == ["y", "z"]
    x = np.array([[-1, 2, 3]] * 2, np.float32)
    np.testing.assert_array_equal(run(transformed, {"x": x})["y"], np.maximum(x, 0))


def test_a_pass_that_takes_an_output_away_is_a_bug() -> None:
    def drop(inner: ir.Model) -> bool:
        del inner.graph.outputs[0]
        return True

    with pytest.raises(Internal, match="outputs"):
        transform_network(network_of(chain()), device_passes=[drop])


def test_a_layer_absorbed_by_a_changed_reader_lives_on_in_it() -> None:
    def absorb(inner: ir.Model) -> bool:
        transpose, gemm = inner.graph
        gemm.replace_input_with(0, transpose.inputs[0])
        gemm.attributes["transA"] = ir.AttrInt64("transA", 1)
        inner.graph.remove(transpose, safe=True)
        return True

    nodes = [node("Transpose", ["x"], ["t"]), node("Gemm", ["t", "z"], ["y"])]
    inputs = [value("x", (3, 3)), value("z", (3, 3))]
    it = network_of(model(nodes, inputs, [value("y", (3, 3))]))
    assert by_op(transform_network(it, device_passes=[absorb])) == {"Gemm": {"t", "y"}}


def test_a_layer_that_nobody_reads_vanishes() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["unread"])]
    it = transform_network(network_of(model(nodes, [value("x")], [value("y")])))
    assert by_op(it) == {"Relu": {"y"}}


def test_origins_survive_the_trip_through_a_clone() -> None:
    it = transform_network(network_of(chain()))
    assert [origins(each) for each in it.clone().nodes()] == [("a", "b"), ("y",)]


def test_a_body_goes_on_producing_its_outputs_itself() -> None:
    it = transform_network(network_of(branches()))
    Network.from_bytes(it.to_bytes())
    assert "Identity" in by_op(it)


def test_two_outputs_of_one_value_stay_two() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["z"])]
    proto = model(nodes, [value("x")], [value("y"), value("z")])
    it = transform_network(network_of(proto))
    assert [port.name for port in it.outputs] == ["y", "z"]
    feeds = inputs_of(proto)
    np.testing.assert_array_equal(run(it, feeds)["z"], np.maximum(feeds["x"], 0))


def test_equal_small_weights_become_one() -> None:
    nodes = [node("Add", ["x", "v"], ["a"]), node("Add", ["a", "w"], ["y"])]
    weights = {"v": np.ones(3, np.float32), "w": np.ones(3, np.float32)}
    it = transform_network(network_of(model(nodes, [value("x")], [value("y")], weights)))
    assert len(it.model.graph.initializers) == 1


@pytest.mark.parametrize("make", [chain, branches, image_network, attention_network])
def test_outputs_are_the_same_before_and_after(make: Callable[[], Any]) -> None:
    proto = make()
    transformed = transform_network(network_of(proto), device_passes=[RULES])
    for seed in range(3):
        feeds = inputs_of(proto, seed)
        expected, actual = run(proto, feeds), run(transformed, feeds)
        assert expected.keys() == actual.keys()
        for name, array in expected.items():
            np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5)


@settings(deadline=None)
@given(random_networks(), st.integers(0, 9))
def test_random_networks_compute_the_same_and_account_for_every_layer(
    proto: Any, seed: int
) -> None:
    original = network_of(proto)
    transformed = transform_network(original, device_passes=[RULES, add_cast_after("Neg")])
    feeds = {name: np.abs(array) + 0.5 for name, array in inputs_of(proto, seed).items()}
    with np.errstate(all="ignore"):
        expected, actual = run(proto, feeds), run(transformed, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-3, atol=1e-5)
    nodes = list(walk(transformed.model.graph))
    assert all(origins(each) for each in nodes)
    stood_for = {name for each in nodes for name in origins(each)}
    assert stood_for <= set(original.layer_names)
    assert needed(original) <= stood_for


def needed(it: Network) -> set[str]:
    """The layers that a transformed network must still stand for: those an output depends on,
    but for identities of what no layer produces."""
    found: set[str] = set()
    waiting = [output.producer() for output in it.model.graph.outputs]
    while waiting:
        each = waiting.pop()
        if each is None or each.name in found:
            continue
        found.add(each.name or "")
        waiting += [source.producer() for source in each.inputs if source is not None]
    for each in it.nodes():
        source = each.inputs[0]
        while source is not None and (inner := source.producer()) and inner.op_type == "Identity":
            source = inner.inputs[0]
        if each.op_type == "Identity" and source is not None and source.producer() is None:
            found.discard(each.name or "")
    return found


def test_an_integer_that_a_call_passes_is_checked_as_one_of_the_layer() -> None:
    given = Network.from_bytes(
        parse(
            "g (float[1,4,2,2] x) => (float[a,b,c,d] y)"
            " { y = headrace.test.deep<n = 4294967296>(x) }"
            ' <domain: "headrace.test", opset_import: ["": 21]> deep <n>(x) => (y)'
            " { y = DepthToSpace<blocksize: int = @n>(x) }"
        ).SerializeToString()
    )
    with pytest.raises(InvalidModel, match=r"'blocksize' of layer .* is 4294967296"):
        inline_functions(given.model)
