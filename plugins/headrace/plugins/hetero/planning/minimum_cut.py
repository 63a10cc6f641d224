"""The minimum cut of a flow network, by Dinic's algorithm. Pure.

E. A. Dinic: Algorithm for solution of a problem of maximum flow in networks with power estimation,
Soviet Mathematics Doklady 11, 1970.
"""

from __future__ import annotations

from collections import deque


class FlowNetwork:
    """Nodes are numbers from 0; capacities are whole numbers. Not thread-safe.

    Args:
        nodes: how many there are at first.
    """

    def __init__(self, nodes: int) -> None:
        self._leaving: list[list[int]] = [[] for _ in range(nodes)]  # arcs, by number
        self._head: list[int] = []
        self._left: list[int] = []  # what an arc can still take; arc ^ 1 leads back

    def add_node(self) -> int:
        self._leaving.append([])
        return len(self._leaving) - 1

    def add_arc(self, source: int, target: int, capacity: int) -> None:
        for start, end, left in ((source, target, capacity), (target, source, 0)):
            self._leaving[start].append(len(self._head))
            self._head.append(end)
            self._left.append(left)

    def source_side(self, source: int, sink: int) -> set[int]:
        """The nodes on the source's side of a minimum cut. Call it once."""
        while True:
            levels = self._levels(source)
            if levels[sink] < 0:
                return {node for node, level in enumerate(levels) if level >= 0}
            self._block(source, sink, levels)

    def _levels(self, source: int) -> list[int]:
        """How far each node is from the source along arcs that are not full; -1 if it is not
        reached."""
        levels = [-1] * len(self._leaving)
        levels[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for arc in self._leaving[node]:
                target = self._head[arc]
                if self._left[arc] and levels[target] < 0:
                    levels[target] = levels[node] + 1
                    queue.append(target)
        return levels

    def _block(self, source: int, sink: int, levels: list[int]) -> None:
        """Fills paths to the sink, each arc of which leads one level on, until none is left."""
        next_arc = [0] * len(self._leaving)
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                filled = min(self._left[arc] for arc in path)
                for arc in path:
                    self._left[arc] -= filled
                    self._left[arc ^ 1] += filled
                node, path = source, []
                continue
            arcs = self._leaving[node]
            while next_arc[node] < len(arcs):
                arc = arcs[next_arc[node]]
                if self._left[arc] and levels[self._head[arc]] == levels[node] + 1:
                    break
                next_arc[node] += 1
            if next_arc[node] < len(arcs):
                path.append(arc)
                node = self._head[arc]
            elif not path:
                return
            else:
                back = path.pop()
                node = self._head[back ^ 1]
                next_arc[node] += 1
