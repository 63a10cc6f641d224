"""Cuts a graph into subgraphs of one affinity each that can run one after the other.

Every answer has these properties:

- Each node is in one part, and a part has one affinity. Parts start as connected components of
  nodes that share affinity and phase. They merge only with parts of the same affinity.
- A graph of one affinity is one part. Otherwise a part is connected through edges between its own
  nodes: components are connected, and two parts merge only along an edge.
- No cycle leads through several parts, so an order of execution exists. Phases are numbered so that
  no edge leads to a lower phase, and each phase belongs to one affinity. Two parts of one phase
  have no edge between them, because they would be one component otherwise. Two parts merge only if
  no other path leads from one to the other. The merged graph is acyclic exactly in that case.
- There are few parts, and they are large. Of several divisions, the code takes the one with the
  fewest parts; of those, the one with the larger parts on the first device, then on the next. This
  is a heuristic: on graphs of two dozen layers, hundreds of random restarts found one or two parts
  in a thousand fewer.

Phases: the devices take turns in a fixed order, and each runs all nodes that it can in its turn. A
node's phase is the first turn of its device at which everything that it reads has run. Counted from
the graph's end, it is the last turn that is early enough for all its readers. Both ways are tried,
with several orders of turns if the graph is small. A division takes one pass over the edges.

Merging: see `quotient`. Both steps are near linear in time and in memory.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, permutations

from headrace.plugins.hetero.planning.quotient import Quotient
from headrace.runtime.system.interruption import wanted

_TRIES = 48  # divisions tried at most
_WORK = 200_000  # nodes and edges of all divisions tried together; at least two are tried


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that run on one device as one subgraph; `nodes` are in ascending order."""

    affinity: str
    nodes: tuple[int, ...]


def partition(
    edges: Sequence[tuple[int, int]], affinities: Sequence[str], priorities: Sequence[str] = ()
) -> tuple[Part, ...]:
    """The parts of a graph in execution order: each part follows the parts whose results it reads.

    The answer depends on the arguments alone. If several parts could come next, the one with the
    smallest node does.

    Args:
        edges: pairs (producer, consumer) of nodes ``0 … len(affinities) - 1``; repeats are allowed.
        affinities: for each node, the device that it must run on.
        priorities: devices, the most preferred first; the others follow by name.

    Raises:
        ValueError: the graph has a cycle, or an edge leads to a node that does not exist.
    """
    graph = _Graph.of(edges, len(affinities))
    present = set(affinities)
    devices = [device for device in dict.fromkeys(priorities) if device in present]
    devices += sorted(present.difference(devices))
    if len(devices) == 1:
        return (Part(devices[0], tuple(range(len(affinities)))),)
    number = {device: index for index, device in enumerate(devices)}
    colours = [number[device] for device in affinities]
    divisions = _divisions(len(devices), len(affinities) + len(graph.edges))
    groups = min(
        (_divided(graph, colours, turns, backwards) for turns, backwards in wanted(divisions)),
        key=lambda found: _cost(found, colours, len(devices)),
    )
    return tuple(
        Part(affinities[groups[index][0]], tuple(groups[index])) for index in _order(graph, groups)
    )


@dataclass(frozen=True, slots=True)
class _Graph:
    """A graph with each edge once. `order` has each node after all nodes that it reads."""

    edges: list[tuple[int, int]]
    readers: list[list[int]]
    sources: list[list[int]]
    order: list[int]

    @classmethod
    def of(cls, edges: Sequence[tuple[int, int]], count: int) -> _Graph:
        unique = list(dict.fromkeys(edges))
        readers: list[list[int]] = [[] for _ in range(count)]
        sources: list[list[int]] = [[] for _ in range(count)]
        for source, target in unique:
            if not (0 <= source < count and 0 <= target < count):
                raise ValueError(f"the edge {source} → {target} leads outside of {count} nodes")
            readers[source].append(target)
            sources[target].append(source)
        waits = [len(each) for each in sources]
        order = [node for node in range(count) if not waits[node]]
        for node in order:  # the list grows during the loop
            for reader in readers[node]:
                waits[reader] -= 1
                if not waits[reader]:
                    order.append(reader)
        if len(order) < count:
            raise ValueError("the graph has a cycle")
        return cls(unique, readers, sources, order)


def _divisions(devices: int, size: int) -> list[tuple[tuple[int, ...], bool]]:
    """The orders in which the devices take turns, each with whether it starts at the graph's end.
    The best guess comes first."""
    if devices <= 4:  # 24 orders
        turns = list(permutations(range(devices)))
    else:
        ring = tuple(range(devices))
        turns = [ring[first:] + ring[:first] for first in ring]
    tries = max(2, min(_TRIES, _WORK // max(1, size)))
    both = ((turn, backwards) for turn in turns for backwards in (True, False))
    return list(islice(both, tries))


def _divided(
    graph: _Graph, colours: Sequence[int], turns: Sequence[int], backwards: bool
) -> list[list[int]]:
    """The parts of one division, merged."""
    phases = _phases(graph, colours, turns, backwards)
    labels = _components(graph.edges, phases)
    tops = sorted(set(labels), key=lambda top: -phases[top] if backwards else phases[top])
    quotient = Quotient(graph.edges, labels, tops, colours)
    quotient.merge()
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for node, label in enumerate(labels):
        groups[quotient.find(label)].append(node)
    return list(groups.values())


def _phases(
    graph: _Graph, colours: Sequence[int], turns: Sequence[int], backwards: bool
) -> list[int]:
    """The turn in which each node runs; counted from the end if `backwards`."""
    first = {colour: turn for turn, colour in enumerate(turns)}
    shifts = [first[colour] for colour in colours]
    onward = graph.sources if backwards else graph.readers
    phases = [0] * len(colours)
    for node in reversed(graph.order) if backwards else graph.order:
        phase = phases[node]
        phase += (shifts[node] - phase) % len(turns)
        phases[node] = phase
        for each in onward[node]:
            if phases[each] < phase:
                phases[each] = phase
    return phases


def _components(edges: Sequence[tuple[int, int]], phases: Sequence[int]) -> list[int]:
    """For each node, the node that represents its component. Edges inside a phase join nodes."""
    root = list(range(len(phases)))
    for source, target in edges:
        if phases[source] == phases[target]:
            while root[source] != source:
                root[source] = source = root[root[source]]
            while root[target] != target:
                root[target] = target = root[root[target]]
            root[source] = target
    for node in range(len(root)):
        top = node
        while root[top] != top:
            root[top] = top = root[root[top]]
        root[node] = top
    return root


def _cost(
    groups: Sequence[Sequence[int]], colours: Sequence[int], devices: int
) -> tuple[int, list[list[int]]]:
    """The cost of a division; less is better. Fewer parts cost less. With as many parts, larger
    parts cost less, compared device by device."""
    sizes: list[list[int]] = [[] for _ in range(devices)]
    for nodes in groups:
        sizes[colours[nodes[0]]].append(-len(nodes))
    return len(groups), [sorted(size) for size in sizes]


def _order(graph: _Graph, groups: Sequence[Sequence[int]]) -> list[int]:
    """Indices of `groups` in execution order. Of groups that are ready, the one with the smallest
    first node comes first."""
    owner = [0] * len(graph.order)
    for index, nodes in enumerate(groups):
        for node in nodes:
            owner[node] = index
    after: list[set[int]] = [set() for _ in groups]
    for source, target in graph.edges:
        after[owner[source]].add(owner[target])
    waits = [0] * len(groups)
    for index, targets in enumerate(after):
        targets.discard(index)
        for target in targets:
            waits[target] += 1
    ready = [(nodes[0], index) for index, nodes in enumerate(groups) if not waits[index]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(index)
        for target in after[index]:
            waits[target] -= 1
            if not waits[target]:
                heapq.heappush(ready, (groups[target][0], target))
    return order
