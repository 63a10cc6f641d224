"""The memory of networks that nobody needs any more."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.runtime.network.memory import take_apart, use
from headrace.runtime.network.network import Network
from tests.support.model_zoo import branches, image_network, model, network, node, value


@pytest.fixture(autouse=True)
def nobody_looks_for_garbage() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def large() -> Network:
    weights = {"w": np.ones((1024, 1024), np.float32)}
    ports = [value("x", (1, 1024))], [value("y", (1, 1024))]
    return network(model([node("MatMul", ["x", "w"], ["y"])], *ports, weights))


def test_the_tensors_of_a_graph_that_is_taken_apart_are_gone_at_once() -> None:
    it = network(image_network())
    left = [weakref.ref(each.const_value) for each in it.model.graph.initializers.values()]
    take_apart(it.model)
    del it
    assert left
    assert not any(each() is not None for each in left)


def test_a_graph_with_bodies_that_read_what_is_around_them_is_taken_apart() -> None:
    it = network(branches())
    take_apart(it.model)
    assert list(it.model.graph) == []


def test_a_network_that_was_used_is_gone_without_a_look_for_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc, "collect", lambda: pytest.fail("every thread would have stopped"))
    assert use(large, lambda it: len(it.layers)) == 1


def test_weights_that_a_copy_still_holds_are_looked_for() -> None:
    held: list[weakref.ref[object]] = []

    def task(it: Network) -> None:
        copy = it.clone()
        weight = copy.model.graph.initializers["w"].const_value
        held.append(weakref.ref(weight))

    use(large, task)
    assert held[0]() is None
