"""The subgraph selection of the Inference Engine's HETERO plugin, word by word: the slow oracle.

Sets of nodes are bit masks, so that a graph of two dozen layers takes well under a millisecond. A
root is whatever no candidate of the round holds. Which adjacent node comes next is left open; in
both runs of the worked example the node of the other device comes last. Two readings agree with
its result: nodes of the own device first, or depth first whoever they are, readers before
producers, which also takes each step in the example's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Found = list[tuple[str, list[int]]]
"""Subgraphs: device and nodes, in the order of their selection."""


def literal_partition(
    edges: Sequence[tuple[int, int]],
    affinities: Sequence[str],
    devices: Sequence[str],
    *,
    own_first: bool = True,
) -> Found:
    """Serves `devices` in their order; nodes are ``0 … len(affinities) - 1``.

    Args:
        own_first: a candidate tries adjacent nodes of its own device before all others.
    """
    count = len(affinities)
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for source, target in sorted(set(edges)):
        neighbours[source].append(target)
    for source, target in sorted(set(edges)):
        neighbours[target].append(source)
    reach = reachable(edges, count)
    found: Found = []
    taken = 0
    for device in devices:
        while True:
            left = [n for n in range(count) if affinities[n] == device and not taken >> n & 1]
            if not left:
                break
            best: list[int] = []
            covered = 0
            allowed = sum(1 << node for node in left)
            for root in left:
                if not covered >> root & 1:
                    candidate = _grown(root, allowed, neighbours, reach, own_first)
                    covered |= sum(1 << node for node in candidate)
                    if len(candidate) > len(best):
                        best = candidate
            found.append((device, sorted(best)))
            taken |= sum(1 << node for node in best)
    return found


def reachable(edges: Sequence[tuple[int, int]], count: int) -> list[int]:
    """For each node of an acyclic graph, all that it reaches: the transitive closure."""
    reach = [0] * count
    for source, target in edges:
        reach[source] |= 1 << target
    for _ in range(count):
        for source, target in edges:
            reach[source] |= reach[target]
    return reach


def _grown(
    root: int,
    allowed: int,
    neighbours: Sequence[Sequence[int]],
    reach: Sequence[int],
    own_first: bool,
) -> list[int]:
    """The candidate that grows from `root`, in the order in which its nodes were added."""
    grown = [root]
    inside, rejected = 1 << root, 0
    while True:
        known = inside | rejected
        node = _adjacent(grown, known | ~allowed, neighbours) if own_first else None
        if node is None:
            node = _adjacent(grown, known, neighbours)
        if node is None:
            return grown
        if allowed >> node & 1:
            grown.append(node)
            inside |= 1 << node
        else:
            rejected |= 1 << node
        while _refers_to_itself(inside, rejected, reach):
            last = grown.pop()
            inside ^= 1 << last
            rejected |= 1 << last


def _adjacent(grown: Sequence[int], known: int, neighbours: Sequence[Sequence[int]]) -> int | None:
    for node in reversed(grown):
        for neighbour in neighbours[node]:
            if not known >> neighbour & 1:
                return neighbour
    return None


def _refers_to_itself(inside: int, rejected: int, reach: Sequence[int]) -> bool:
    """Whether a rejected node lies on a way between two nodes of the subgraph.

    Asked of the rejected node instead of each pair: somebody inside reaches it, and it somebody.
    """
    after = 0
    for node in _members(inside):
        after |= reach[node]
    return any(reach[node] & inside for node in _members(after & rejected))


def _members(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
