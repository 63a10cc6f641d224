"""Which subgraph waits for which, and how often each tensor between them is read."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.virtual.flow import Ends, flow

DIAMOND = (
    Ends(("x",), ("a",)),
    Ends(("a",), ("b",)),
    Ends(("a",), ("c", "spare")),
    Ends(("b", "c"), ("y",)),
)


def test_a_subgraph_waits_for_each_that_it_takes_something_from() -> None:
    found = flow(DIAMOND, ["y"])
    assert found.count == 4
    assert found.first == (0,)
    assert found.waits == (0, 1, 1, 2)
    assert found.followers == ((1, 2), (3,), (3,), ())


def test_two_tensors_from_one_subgraph_are_waited_for_once() -> None:
    found = flow([Ends(("x",), ("a", "b")), Ends(("a", "b"), ("y",))], ["y"])
    assert found.waits == (0, 1)
    assert found.followers == ((1,), ())


def test_what_nobody_wants_is_not_computed() -> None:
    found = flow(DIAMOND, ["c"])
    assert found.count == 2
    assert found.outputs == (("a",), (), ("c",), ())
    assert found.reads == {"a": 1, "c": 1}


def test_a_tensor_is_read_once_by_each_reader() -> None:
    assert flow(DIAMOND, ["y"]).reads == {"a": 2, "b": 1, "c": 1, "y": 1}


def test_an_output_that_is_read_too_is_kept_to_the_end() -> None:
    assert flow(DIAMOND, ["y", "a"]).reads["a"] == 3


def test_an_output_that_no_subgraph_makes_needs_none() -> None:
    found = flow(DIAMOND, ["x"])
    assert found.count == 0
    assert found.first == ()


def test_inputs_of_the_network_are_not_handed_over() -> None:
    found = flow(DIAMOND, ["y"])
    assert found.handed == ((), ("a",), ("a",), ("b", "c"))


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Ends], list[str]]:
    """Subgraphs that each take some of what came before, and some of the results."""
    tensors = ["x"]
    subgraphs = []
    for number in range(draw(st.integers(1, 8))):
        inputs = draw(st.lists(st.sampled_from(tensors), unique=True))
        outputs = [f"t{number}.{k}" for k in range(draw(st.integers(1, 2)))]
        subgraphs.append(Ends(tuple(inputs), tuple(outputs)))
        tensors += outputs
    return subgraphs, draw(st.lists(st.sampled_from(tensors[1:]), min_size=1, unique=True))


@given(networks())
def test_every_order_that_the_waits_allow_runs_to_the_end(
    network: tuple[list[Ends], list[str]],
) -> None:
    subgraphs, wanted = network
    for first_in in (True, False):
        assert set(wanted) <= run(subgraphs, wanted, first_in)


def run(subgraphs: Sequence[Ends], wanted: Sequence[str], first_in: bool) -> set[str]:
    """What is left when every subgraph has run, each tensor freed after its last reader."""
    found = flow(subgraphs, wanted)
    waits, reads, held = list(found.waits), dict(found.reads), set[str]()
    ready, done = list(found.first), 0
    while ready:
        at = ready.pop(0 if first_in else -1)
        done += 1
        assert set(found.handed[at]) <= held
        for name in found.handed[at]:
            reads[name] -= 1
            if not reads[name]:
                held.remove(name)
        held.update(found.outputs[at])
        for follower in found.followers[at]:
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
    assert done == found.count
    assert held == set(wanted)
    return held
