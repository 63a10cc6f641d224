"""Parts of a graph and the edges between them, merged as long as no cycle arises.

As in J. Herrmann et al., "Multilevel Algorithms for Acyclic Partitioning of Directed Acyclic
Graphs" (SIAM J. Sci. Comput. 41(4), 2019), an edge may be contracted if no other way leads from
its one end to the other. That way is sought only among the parts that a topological order has
between the two, and the order is mended there alone, after D. Pearce and P. Kelly, "A Dynamic
Topological Sort Algorithm for Directed Acyclic Graphs" (ACM JEA 11, 2006). What one search may
follow is bounded, and what all may is proportional to the graph, so the time is near linear; a
search cut short leaves two parts apart that might have been one, and never makes a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence

_SEARCH = 1_000  # edges that one search may follow
_STEPS = 8  # edges that all may, for each node and edge of the graph


class Quotient:
    """Parts, each called by one of its nodes; acyclic, whichever merge."""

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
            labels: of each node, the part that it is in.
            parts: in a topological order.
            colours: of each node; parts merge with those of their own colour only.
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
        """The part that `part` has become."""
        into = self._into
        while (merged := into.get(part)) is not None:
            if merged in into:
                into[part] = into[merged]  # halves the way for the next search
            part = merged
        return part

    def merge(self) -> None:
        """Merges parts along edges until none can, or as much as may be visited was."""
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
        """Merges the two ends of an edge unless another way leads from the one to the other."""
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
        """What can be reached from `start` and has its place before `end`, in order of place; None
        if `end` itself can, by more than one edge, or if the search is cut short."""
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
