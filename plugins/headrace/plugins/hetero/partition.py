"""Cutting a graph into subgraphs of one affinity each that can run one after the other.

A node's level is the largest number of changes of affinity on a way from it to an end of the
graph. Along an edge the level never rises, and it stays only between nodes of one affinity; so the
connected components of each level are parts of one affinity, and edges between parts lead to lower
levels only: no cycle between them is possible.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that run on one device as one subgraph; `nodes` ascend."""

    affinity: str
    nodes: tuple[int, ...]


def partition(
    edges: Sequence[tuple[int, int]], affinities: Sequence[str], priorities: Sequence[str] = ()
) -> tuple[Part, ...]:
    """The parts of a graph in execution order: each after all whose results it reads.

    Args:
        edges: pairs (producer, consumer) of nodes ``0 … len(affinities) - 1``; repeats are allowed.
        affinities: of each node, the device that it is to run on.
        priorities: devices, the one to be served best first; the others follow by name.

    Raises:
        ValueError: the graph has a cycle.
    """
    count = len(affinities)
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in set(edges):
        readers[source].append(target)
    levels = [0] * count
    root = list(range(count))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for node in reversed(_topological(readers, range(count))):
        for reader in readers[node]:
            step = affinities[node] != affinities[reader]
            levels[node] = max(levels[node], levels[reader] + step)
        for reader in readers[node]:
            if levels[node] == levels[reader] and affinities[node] == affinities[reader]:
                root[find(node)] = find(reader)
    members: dict[int, list[int]] = {}
    for node in range(count):
        members.setdefault(find(node), []).append(node)
    number = {top: index for index, top in enumerate(members)}
    groups = list(members.values())
    after: list[set[int]] = [set() for _ in groups]
    for source, target in edges:
        first, second = number[find(source)], number[find(target)]
        if first != second:
            after[first].add(second)
    return tuple(
        Part(affinities[groups[index][0]], tuple(groups[index]))
        for index in _topological(after, [nodes[0] for nodes in groups])
    )


def _topological(readers: Sequence[Sequence[int] | set[int]], keys: Sequence[int]) -> list[int]:
    """Each after those that it reads, among several the one with the smallest key first."""
    waits = [0] * len(readers)
    for targets in readers:
        for target in targets:
            waits[target] += 1
    ready = [(keys[node], node) for node, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for target in readers[node]:
            waits[target] -= 1
            if not waits[target]:
                heapq.heappush(ready, (keys[target], target))
    if len(order) < len(readers):
        raise ValueError("the graph has a cycle")
    return order
