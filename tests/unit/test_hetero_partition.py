"""The partition of a graph over devices: what holds of every subgraph, and how few there are."""

from __future__ import annotations

from headrace.plugins.hetero.partition import partition


def test_the_worked_example_is_cut_as_described() -> None:
    edges = [(1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (5, 6), (6, 7)]
    shifted = [(source - 1, target - 1) for source, target in edges]
    parts = partition(shifted, ["first"] * 3 + ["second"] + ["first"] * 3)
    named = [(part.affinity, [node + 1 for node in part.nodes]) for part in parts]
    assert named == [("first", [1, 2]), ("second", [4]), ("first", [3, 5, 6, 7])]
