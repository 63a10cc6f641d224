"""Work on a network ends at the layer at which nobody wants its result any more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest

from headrace.plugins.hetero.planning.cut import Cutter
from headrace.plugins.hetero.planning.layers import edges_between, layer_of
from headrace.plugins.hetero.planning.partition import Part
from headrace.plugins.template.transformations import TRANSFORMATIONS
from headrace.runtime.errors import Cancelled
from headrace.runtime.intake.naming import name_layers, walk
from headrace.runtime.intake.provenance import tracked
from headrace.runtime.network.graph import graph_of
from headrace.runtime.network.network import Network
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.system.interruption import check, current, interruptible, wanted
from headrace.runtime.transform.passes import simplify
from headrace.runtime.transform.query import query_network
from headrace.runtime.transform.transform import transform_network
from headrace.testing.case import network_of
from tests.support.model_zoo import function, model, node, value

LAYERS = 40
LEVELS = 6


class CancelledAtLook:
    """A token that is cancelled when it is looked at for the n-th time."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.looks = 0

    @property
    def error(self) -> Cancelled | None:
        self.looks += 1
        return Cancelled("nobody wants it") if self.looks >= self._at else None


def chain() -> Network:
    """Relu after Relu, with calls of functions that call functions at the end."""
    nodes = [node("Relu", [f"v{at}"], [f"v{at + 1}"]) for at in range(LAYERS)]
    functions = [function("f0", [node("Relu", ["a"], ["b"])])]
    for at in range(1, LEVELS):
        inner = {"domain": "f"}
        twice = [
            node(f"f{at - 1}", ["a"], ["m"], **inner),
            node(f"f{at - 1}", ["m"], ["b"], **inner),
        ]
        functions.append(function(f"f{at}", twice))
    nodes.append(node(f"f{LEVELS - 1}", [f"v{LAYERS}"], ["y"], domain="f"))
    proto = model(nodes, [value("v0")], [value("y")], functions=functions, domains=["f"])
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return network_of(proto)


def step(of: Callable[[Network], object]) -> Callable[[Network], Callable[[], object]]:
    return lambda given: lambda: of(given)


STEPS: dict[str, Callable[[Network], Callable[[], object]]] = {
    "read": lambda given: partial(Network.from_bytes, given.to_bytes()),
    "walk": step(lambda given: list(walk(given.model.graph))),
    "name": step(lambda given: name_layers(given.model.graph)),
    "infer": step(lambda given: infer_types(given.model)),
    "simplify": step(lambda given: tracked(given.model, simplify)),
    "rewrite": step(lambda given: TRANSFORMATIONS[0](given.model)),
    "transform": step(transform_network),
    "query": step(lambda given: query_network(given, given.clone(), lambda _: None, "CPU")),
    "graph": step(lambda given: graph_of(given, {})),
    "layers": step(lambda given: list(map(layer_of, given.model.graph))),
    "edges": step(lambda given: edges_between(list(given.model.graph))),
    "cut": step(lambda given: Cutter(given).piece(Part("CPU", tuple(range(LAYERS))))),
}


@pytest.mark.parametrize("name", STEPS)
def test_each_step_asks_at_every_layer_and_ends_when_its_result_is_not_wanted(name: str) -> None:
    counting = CancelledAtLook(sys.maxsize)
    ready = STEPS[name](chain())
    with interruptible(counting):
        ready()
    assert counting.looks >= LAYERS
    for at in (1, LAYERS // 2, counting.looks):
        token = CancelledAtLook(at)
        ready = STEPS[name](chain())
        with pytest.raises(Cancelled, match="nobody wants it"), interruptible(token):
            ready()
        assert token.looks == at + 1  # and once more for the error


def test_passes_and_libraries_that_catch_every_error_do_not_go_on() -> None:
    went_on = []

    def library() -> None:
        try:
            check()
        except Exception:  # noqa: BLE001 - as libraries do
            went_on.append("after it")

    with pytest.raises(Cancelled), interruptible(CancelledAtLook(1)):
        library()
    assert went_on == []


def test_what_asks_outside_of_a_load_goes_on() -> None:
    check()
    assert list(wanted("abc")) == ["a", "b", "c"]


def test_the_innermost_token_decides_and_its_error_comes_out() -> None:
    outer, inner = CancelledAtLook(sys.maxsize), CancelledAtLook(1)
    with interruptible(outer):
        with pytest.raises(Cancelled), interruptible(inner):
            check()
        assert current() is outer
        check()
    assert current() is None
