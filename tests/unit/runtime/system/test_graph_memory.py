"""The memory of graphs that nobody refers to any more."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import onnx
import onnx_ir as ir
import pytest

from headrace.runtime.network.network import Network
from headrace.runtime.system import graph_memory
from headrace.runtime.system.graph_memory import free_graphs, watched
from headrace.testing.case import network_of
from tests.support.gate import Gate, join
from tests.support.model_zoo import branches, image_network


@pytest.fixture(autouse=True)
def python_does_not_collect() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def functional() -> ir.Model:
    """A model with a function."""
    body = ir.Node("", "Relu", [given := ir.Value(name="a")])
    graph = ir.Graph([given], body.outputs, nodes=[body], opset_imports={"": 18})
    function = ir.Function("own", "f", graph=graph, attributes=[])
    whole = ir.Graph([], [], nodes=[], opset_imports={"": 18})
    return watched(ir.Model(whole, ir_version=10, functions=[function]))


def parts(model: ir.Model) -> list[weakref.ref[object]]:
    """All graphs, nodes, values and tensors of initialisers."""
    found: list[object] = list(model.graphs())
    for node in model.graph.all_nodes():
        found += (node, *node.outputs)
    for value in model.graph.initializers.values():
        found += (value, value.const_value)
    return [weakref.ref(each) for each in found]


def alive(references: list[weakref.ref[object]]) -> int:
    return sum(each() is not None for each in references)


@pytest.mark.parametrize("make", [image_network, branches])
def test_a_graph_is_freed_whole_once_its_model_is_gone(
    make: Callable[[], onnx.ModelProto],
) -> None:
    it = network_of(make())
    left = parts(it.model)
    free_graphs()
    assert alive(left) == len(left)
    del it
    free_graphs()
    assert alive(left) == 0
    assert gc.collect() == 0


HOLDS: dict[str, Callable[[ir.Graph], object]] = {
    "the graph": lambda graph: graph,
    "a node": lambda graph: graph[0],
    "an input": lambda graph: graph.inputs[0],
    "the inputs": lambda graph: graph.inputs,
    "an initialiser": lambda graph: next(iter(graph.initializers.values())),
    "the attributes of a node": lambda graph: graph[0].attributes,
    "who uses a value": lambda graph: graph.inputs[0].uses(),
    "a loop over the nodes": lambda graph: _begun(iter(graph)),
    "a loop over the initialisers": lambda graph: _begun(iter(graph.initializers.items())),
    "what a function has from around it": lambda graph: lambda: graph,
    "an object of another kind": lambda graph: Holder(graph),
}


class Holder:
    def __init__(self, held: object) -> None:
        self.held = held


def _begun(loop: Iterator[object]) -> Iterator[object]:
    next(loop)
    return loop


@pytest.mark.parametrize("what", HOLDS)
def test_a_graph_of_which_somebody_holds_a_part_stays_whole(what: str) -> None:
    it = network_of(image_network())
    layers = it.layers
    left = parts(it.model)
    held = HOLDS[what](it.model.graph)
    graph = weakref.ref(it.model.graph)
    del it
    free_graphs()
    assert alive(left) == len(left)
    whole = graph()
    assert whole is not None
    assert Network(ir.Model(whole, ir_version=10)).layers == layers
    del held


def test_a_graph_whose_layer_with_a_body_somebody_has_an_attribute_of_stays_whole() -> None:
    it = network_of(branches())
    left = parts(it.model)
    held = next(node for node in it.nodes() if node.op_type == "If").attributes["then_branch"]
    del it
    free_graphs()
    assert alive(left) == len(left)
    del held
    free_graphs()


def test_a_number_of_a_layer_that_somebody_has_does_not_keep_the_graph() -> None:
    it = network_of(image_network())
    left = parts(it.model)
    held = next(each for node in it.nodes() for each in node.attributes.values())
    value = held.value
    del it
    free_graphs()
    assert alive(left) == 0
    assert held.value == value


def test_a_part_that_is_taken_out_of_a_graph_while_it_is_looked_at_stays_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = network_of(image_network())
    graph = weakref.ref(it.model.graph)
    it.model.graph.meta["part"] = ir.Node("", "Relu", [ir.Value(name="a")])
    taken: list[ir.Node] = []
    look = graph_memory._references

    def take(objects: list[object]) -> Counter[int]:
        found = look(objects)
        if not taken:
            whole = graph()
            assert whole is not None
            taken.append(whole.meta.pop("part"))
        return found

    monkeypatch.setattr(graph_memory, "_references", take)
    del it
    free_graphs()
    (node,) = taken
    assert node.op_type == "Relu"
    assert [value.name for value in node.inputs if value is not None] == ["a"]


def test_a_tensor_that_somebody_holds_does_not_keep_its_graph() -> None:
    it = network_of(image_network())
    tensor = next(iter(it.model.graph.initializers.values())).const_value
    assert tensor is not None
    before = tensor.tobytes()
    graph = weakref.ref(it.model.graph)
    del it
    free_graphs()
    assert graph() is None
    assert tensor.tobytes() == before


def test_a_copy_shares_tensors_and_attributes_with_a_graph_that_is_freed_and_stays_as_it_was() -> (
    None
):
    it = network_of(image_network())
    copy = it.clone()
    before = it.to_bytes()
    del it
    free_graphs()
    assert copy.to_bytes() == before


def test_functions_are_freed_with_their_model() -> None:
    it = functional()
    (function,) = it.functions.values()
    graph = weakref.ref(function.graph)
    del it, function
    free_graphs()
    assert graph() is None


def test_a_function_that_somebody_holds_stays_and_does_not_keep_the_graph() -> None:
    it = functional()
    (function,) = it.functions.values()
    graph = weakref.ref(it.graph)
    del it
    free_graphs()
    assert graph() is None
    assert [node.op_type for node in function] == ["Relu"]


def test_a_graph_that_another_model_has_too_stays() -> None:
    it = network_of(image_network())
    other = watched(ir.Model(it.model.graph, ir_version=10))
    count = len(it.layers)
    del it
    free_graphs()
    assert len(list(other.graph.all_nodes())) == count


def test_who_does_not_wait_leaves_its_graphs_to_the_thread_that_frees_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, free = Gate(), graph_memory._free

    def slow(objects: list[object]) -> None:
        gate()
        free(objects)

    free_graphs()
    monkeypatch.setattr(graph_memory, "_free", slow)
    large, small = network_of(image_network()), network_of(branches())
    left = [*parts(large.model), *parts(small.model)]
    del large
    freeing = threading.Thread(target=free_graphs)
    freeing.start()
    gate.await_arrivals()
    del small
    free_graphs(wait=False)
    assert alive(left) == len(left)
    gate.open()
    join(freeing)
    assert alive(left) == 0


@pytest.mark.parametrize("values", [range(50_000), [f"k{at}" for at in range(50_000)]])
def test_no_thread_waits_while_the_values_of_a_long_list_are_looked_at(
    values: Sequence[int | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = image_network()
    proto.graph.node[0].domain = "own"
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("list", list(values)))
    proto.opset_import.add(domain="own", version=1)
    it, longest = network_of(proto), 0
    left, find = parts(it.model), gc.get_referents

    def found(*objects: object) -> list[object]:
        nonlocal longest
        referents = find(*objects)
        longest = max(longest, len(referents))
        return referents

    monkeypatch.setattr(gc, "get_referents", found)
    free_graphs()
    del it
    free_graphs()
    assert alive(left) == 0
    assert 0 < longest < 20_000
