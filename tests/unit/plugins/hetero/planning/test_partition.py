"""The partition of a graph over devices: what holds of every subgraph, and how few there are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.hetero.planning.partition import Part, partition
from tests.support.literal_partition import literal_partition, reachable

Edges = list[tuple[int, int]]


class Graph(NamedTuple):
    edges: Edges
    affinities: list[str]
    devices: list[str]


def shown(parts: Sequence[Part]) -> list[tuple[str, list[int]]]:
    return [(part.affinity, list(part.nodes)) for part in parts]


def random_graph(chance: random.Random) -> Graph:
    """8 to 24 layers, 2 to 4 devices of which the first is the favourite, sparse to dense."""
    count, devices = chance.randint(8, 24), list("ABCD"[: chance.randint(2, 4)])
    density, favour = chance.uniform(0.1, 0.5), chance.uniform(0.5, 0.9)
    edges = [(a, b) for b in range(count) for a in range(b) if chance.random() < density]
    affinities = [
        devices[0] if chance.random() < favour else chance.choice(devices[1:]) for _ in range(count)
    ]
    return Graph(edges, affinities, devices)


def random_graphs(count: int) -> list[Graph]:
    chance = random.Random(3)
    return [random_graph(chance) for _ in range(count)]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Nodes in any order, so that a producer may have the larger number; edges may repeat."""
    count = draw(st.integers(0, 12))
    devices = list("ABCD")
    affinities = draw(st.lists(st.sampled_from(devices), min_size=count, max_size=count))
    if count < 2:
        return Graph([], affinities, devices)
    nodes = draw(st.permutations(range(count)))
    ends = st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True).map(sorted)
    edges = [(nodes[a], nodes[b]) for a, b in draw(st.lists(ends, max_size=3 * count))]
    return Graph(edges, affinities, devices)


def assert_sound(graph: Graph, parts: Sequence[Part]) -> None:
    """What is promised of every answer."""
    owner = {node: index for index, part in enumerate(parts) for node in part.nodes}
    listed = [node for part in parts for node in part.nodes]
    assert sorted(listed) == list(range(len(graph.affinities))), "each node in exactly one part"
    assert all(a == b or owner[a] < owner[b] for a, b in crossing(graph, owner)), "execution order"
    reach = reachable(graph.edges, len(graph.affinities))
    for part in parts:
        assert list(part.nodes) == sorted(part.nodes)
        assert {graph.affinities[node] for node in part.nodes} == {part.affinity}
        assert len(parts) == 1 or is_connected(graph.edges, part.nodes)
        inside = sum(1 << node for node in part.nodes)
        after = 0
        for node in part.nodes:
            after |= reach[node]
        outside = set(range(len(graph.affinities))).difference(part.nodes)
        assert not any(after >> node & 1 and reach[node] & inside for node in outside), (
            "no part refers to itself"
        )
    between = [(owner[a], owner[b]) for a, b in crossing(graph, owner)]
    assert not has_cycle(between, len(parts))


def crossing(graph: Graph, owner: dict[int, int]) -> Edges:
    return [(a, b) for a, b in graph.edges if owner[a] != owner[b]]


def has_cycle(edges: Edges, count: int) -> bool:
    return any(reach >> node & 1 for node, reach in enumerate(reachable(edges, count)))


def is_connected(edges: Edges, nodes: Sequence[int]) -> bool:
    inside = set(nodes)
    neighbours: dict[int, set[int]] = {node: set() for node in nodes}
    for a, b in edges:
        if a in inside and b in inside:
            neighbours[a].add(b)
            neighbours[b].add(a)
    found, stack = {nodes[0]}, [nodes[0]]
    while stack:
        for each in neighbours[stack.pop()] - found:
            found.add(each)
            stack.append(each)
    return found == inside


# -- small graphs --

WORKED_EXAMPLE = [(1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (5, 6), (6, 7)]


def test_the_worked_example_is_cut_as_described() -> None:
    edges = [(source - 1, target - 1) for source, target in WORKED_EXAMPLE]
    parts = partition(edges, ["first"] * 3 + ["second"] + ["first"] * 3, ["first", "second"])
    named = [(part.affinity, [node + 1 for node in part.nodes]) for part in parts]
    assert named == [("first", [1, 2]), ("second", [4]), ("first", [3, 5, 6, 7])]


def test_two_parts_never_wait_for_each_other() -> None:
    a1, a2, b1, b2 = range(4)
    edges = [(a1, a2), (a1, b1), (b2, b1), (b2, a2)]
    graph = Graph(edges, ["A", "A", "B", "B"], ["A", "B"])
    parts = partition(*graph)
    assert_sound(graph, parts)
    assert len(parts) == 3
    assert ("A", [a1, a2]) in shown(parts), "the first device is served best"


def test_nothing_is_cut_where_one_device_runs_all() -> None:
    assert shown(partition([(0, 1), (0, 2), (1, 3), (2, 3)], ["A"] * 4)) == [("A", [0, 1, 2, 3])]


def test_a_chain_is_cut_where_the_device_changes() -> None:
    parts = partition([(n, n + 1) for n in range(6)], list("AABBACC"))
    assert shown(parts) == [("A", [0, 1]), ("B", [2, 3]), ("A", [4]), ("C", [5, 6])]


def test_a_diamond_with_one_foreign_side_keeps_the_other_with_one_end() -> None:
    parts = partition([(0, 1), (0, 2), (1, 3), (2, 3)], list("AABA"))
    assert [len(part.nodes) for part in parts] == [1, 1, 2]


def test_a_diamond_with_foreign_sides_is_four_parts() -> None:
    parts = partition([(0, 1), (0, 2), (1, 3), (2, 3)], list("ABBA"))
    assert shown(parts) == [("A", [0]), ("B", [1]), ("B", [2]), ("A", [3])]


def test_several_inputs_of_the_network_may_start_in_several_parts() -> None:
    parts = partition([(0, 3), (1, 3), (2, 3), (3, 4)], list("ABAAA"))
    assert shown(parts) == [("B", [1]), ("A", [0, 2, 3, 4])]


def test_unconnected_nodes_of_one_device_are_parts_of_their_own() -> None:
    parts = partition([(0, 2), (1, 3)], list("AAAAB"))
    assert shown(parts) == [("A", [0, 2]), ("A", [1, 3]), ("B", [4])]


def test_a_graph_that_one_device_runs_is_one_part_also_if_it_is_not_connected() -> None:
    assert shown(partition([(0, 2), (1, 3)], list("AAAA"))) == [("A", [0, 1, 2, 3])]


@pytest.mark.parametrize("devices", ["ABC", "ABCD"])
def test_devices_that_take_turns_on_a_chain_run_a_node_each(devices: str) -> None:
    count = 3 * len(devices)
    parts = partition([(n, n + 1) for n in range(count - 1)], list(devices * 3))
    assert shown(parts) == [(devices[n % len(devices)], [n]) for n in range(count)]


@pytest.mark.parametrize("devices", ["ABC", "ABCD"])
def test_a_branch_on_each_device_is_a_part_on_each(devices: str) -> None:
    edges, affinities = [], ["A"]
    for device in devices:
        for source in (0, len(affinities), len(affinities) + 1):
            edges.append((source, len(affinities)))
            affinities.append(device)
    parts = partition(edges, affinities)
    assert [part.affinity for part in parts] == list(devices)
    assert len(parts[0].nodes) == 4


def test_what_runs_apart_may_run_together_when_its_turn_comes() -> None:
    """B's nodes are at different distances from the start, yet nothing comes between them."""
    a, b, early, late, end = range(5)
    parts = partition([(a, b), (b, late), (early, end), (late, end)], list("AABBB"))
    assert shown(parts) == [("A", [a, b]), ("B", [early, late, end])]


def test_an_empty_graph_has_no_parts() -> None:
    assert partition([], []) == ()


# -- refusals --


@pytest.mark.parametrize("edges", [[(0, 0)], [(0, 1), (1, 0)], [(0, 1), (1, 2), (2, 1)]])
def test_a_cyclic_graph_is_refused(edges: Edges) -> None:
    with pytest.raises(ValueError, match="cycle"):
        partition(edges, ["A", "B", "C"])


@pytest.mark.parametrize("edge", [(0, 2), (-1, 0)])
def test_an_edge_to_no_node_is_refused(edge: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        partition([edge], ["A", "B"])


# -- every graph --


@given(graphs())
def test_every_property_holds_of_any_graph(graph: Graph) -> None:
    assert_sound(graph, partition(*graph))


@given(graphs())
def test_repeated_edges_and_their_order_change_nothing_that_is_promised(graph: Graph) -> None:
    doubled = Graph([*reversed(graph.edges), *graph.edges], graph.affinities, graph.devices)
    parts = partition(*doubled)
    assert_sound(graph, parts)
    assert parts == partition(*doubled)


@given(graphs())
def test_no_two_parts_are_left_that_could_be_one(graph: Graph) -> None:
    parts = partition(*graph)
    owner = {node: index for index, part in enumerate(parts) for node in part.nodes}
    between = {(owner[a], owner[b]) for a, b in crossing(graph, owner)}
    for first, second in between:
        if parts[first].affinity == parts[second].affinity:
            renamed = [
                (first if a == second else a, first if b == second else b) for a, b in between
            ]
            rest = [(a, b) for a, b in renamed if a != b]
            assert has_cycle(rest, len(parts))


@given(graphs())
def test_where_the_literal_method_needs_one_part_a_device_so_do_we(graph: Graph) -> None:
    found = literal_partition(*graph)
    if len(found) == len(set(graph.affinities)) and not waits_for_itself(graph, found):
        assert len(partition(*graph)) == len(found)


def waits_for_itself(graph: Graph, found: list[tuple[str, list[int]]]) -> bool:
    owner = {node: index for index, (_, nodes) in enumerate(found) for node in nodes}
    return has_cycle([(owner[a], owner[b]) for a, b in crossing(graph, owner)], len(found))


def test_every_property_holds_of_random_graphs() -> None:
    for graph in random_graphs(500):
        assert_sound(graph, partition(*graph))


def test_a_large_graph_keeps_every_order_though_searches_are_cut_short() -> None:
    chance = random.Random(1)
    count = 3000
    edges = [(chance.randrange(node), node) for node in range(1, count) for _ in range(3)]
    parts = partition(edges, [chance.choice("AAB") for _ in range(count)])
    owner = {node: index for index, part in enumerate(parts) for node in part.nodes}
    assert all(owner[a] <= owner[b] for a, b in edges)
    assert all(is_connected(edges, part.nodes) for part in parts if len(part.nodes) > 20)


# -- how few --


def totals(count: int, *, own_first: bool) -> tuple[int, int]:
    """Parts of ours and of the literal method's over random graphs."""
    chosen = random_graphs(count)
    literal = sum(len(literal_partition(*graph, own_first=own_first)) for graph in chosen)
    return sum(len(partition(*graph)) for graph in chosen), literal


def test_random_graphs_have_far_fewer_parts_than_the_literal_method_makes() -> None:
    ours, literal = totals(400, own_first=True)
    assert ours <= 0.92 * literal


def test_the_kinder_reading_is_matched_though_it_may_leave_parts_that_wait_for_each_other() -> None:
    """Depth first the literal method makes about as many parts as the least number there is; one
    answer in eight cannot be executed."""
    ours, literal = totals(400, own_first=False)
    assert ours <= 1.01 * literal
