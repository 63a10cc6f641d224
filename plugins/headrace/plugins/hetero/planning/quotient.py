"""Merges the parts of a graph along the edges between them, as long as no cycle arises.

An edge may be contracted if no other path leads from one of its ends to the other, as in J.
Herrmann et al., "Multilevel Algorithms for Acyclic Partitioning of Directed Acyclic Graphs" (SIAM
J. Sci. Comput. 41(4), 2019). The search for another path looks only at parts that lie between the
two ends in a topological order. Only that section of the order is repaired, as in D. Pearce and P.
Kelly, "A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs" (ACM JEA 11, 2006).

The number of edges that one search follows is bounded. The number that all searches follow is
proportional to the size of the graph, so the time is near linear. A search that is cut short may
leave two parts separate that could have merged, but it never makes a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence

_SEARCH = 1_000  # edges that one search may follow
_STEPS = 8  # edges that all searches together may follow, for each node and edge of the graph


class Quotient:
    """The graph of the parts. One of its nodes identifies each part. No merge makes a cycle."""

    __slots__ = ("_after", "_before", "_colours", "_into", "_place", "_steps")

    def __init__(
        self,
        edges: Sequence[tuple[int, int]],
        labels: Sequence[int],
        parts: Sequence[int],
        colours: Sequence[int],
    ) -> None:
        """
        Args:
            edges: between nodes.
            labels: for each node, the part that it is in.
            parts: in a topological order.
            colours: the colour of each node; parts merge only with parts of the same colour.
        """
        self._place = {part: place for place, part in enumerate(parts)}  # rises along each edge
        self._colours = colours
        self._steps = _SEARCH + _STEPS * (len(labels) + len(edges))
        self._after: dict[int, dict[int, None]] = {part: {} for part in parts}
        self._before: dict[int, dict[int, None]] = {part: {} for part in parts}
        self._into: dict[int, int] = {}
        for source, target in edges:
            first, second = labels[source], labels[target]
            if first != second:
                self._after[first][second] = None
                self._before[second][first] = None

    def find(self, part: int) -> int:
        """The part that `part` has been merged into."""
        into = self._into
        while (merged := into.get(part)) is not None:
            if merged in into:
                into[part] = into[merged]  # halves the way for the next search
            part = merged
        return part

    def merge(self) -> None:
        """Merges parts along edges until no more can merge, or until no steps are left."""
        colours = self._colours
        merged = True
        while merged and self._steps > 0:
            merged = False
            pairs = [
                (first, second)
                for first, targets in self._after.items()
                for second in targets
                if colours[first] == colours[second]
            ]
            self._steps -= len(pairs)
            for one, other in pairs:
                first, second = self.find(one), self.find(other)
                if self._place[first] > self._place[second]:
                    first, second = second, first
                if second in self._after[first] and self._steps > 0:
                    merged = self._try(first, second) or merged

    def _try(self, first: int, second: int) -> bool:
        """Merges the two ends of an edge unless another path leads from one to the other."""
        place = self._place
        if len(self._after[first]) == 1:  # nothing else reads `first`, so it can wait
            place[first] = place[second]
        elif len(self._before[second]) == 1:  # `second` reads nothing else, so it can run at once
            place[second] = place[first]
        else:
            later = self._between(first, second, self._after, 1)
            earlier = None if later is None else self._between(second, first, self._before, -1)
            if later is None or earlier is None:
                return False
            order = [*earlier, first, second, *later]
            for part, at in zip(order, sorted(place[part] for part in order), strict=True):
                place[part] = at
        self._join(first, second)
        return True

    def _between(
        self, start: int, end: int, onward: dict[int, dict[int, None]], sign: int
    ) -> list[int] | None:
        """The parts that can be reached from `start` and are placed before `end`, in order of
        place. None if a path of more than one edge reaches `end`, or if the search is cut short."""
        place = self._place
        limit = sign * place[end]
        allowed = min(self._steps, _SEARCH)
        seen = {start}
        stack = [start]
        while stack:
            part = stack.pop()
            cost = len(onward[part])
            allowed -= cost
            if allowed < 0:
                return None
            self._steps -= cost
            for each in onward[part]:
                if each == end:
                    if part != start:
                        return None
                elif each not in seen and sign * place[each] < limit:
                    seen.add(each)
                    stack.append(each)
        seen.discard(start)
        return sorted(seen, key=place.__getitem__)

    def _join(self, first: int, second: int) -> None:
        after, before = self._after, self._before
        del after[first][second], before[second][first]
        if len(after[first]) + len(before[first]) < len(after[second]) + len(before[second]):
            first, second = second, first
        self._into[second] = first
        for onward, back in ((after, before), (before, after)):
            for each in onward.pop(second):
                del back[each][second]
                back[each][first] = None
                onward[first][each] = None
