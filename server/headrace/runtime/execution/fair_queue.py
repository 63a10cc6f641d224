"""The order in which waiting work runs: by priority with ageing, fair between networks.

Inside a flow, which is one network's lane, the entry with the least ``arrival - priority *
HEAD_START`` goes first. Arrivals are counted per flow. So fewer than ``priority difference *
HEAD_START`` later entries can pass an entry.

Between flows: a flow's tag grows by one for each entry served, and the flow with the least ``tag -
priority of its first entry * HEAD_START`` goes first. So flows take turns, however long their
queues are. A priority gives a flow its later turns earlier, and no extra turns. The virtual time is
the least tag of the flows that could run. A flow that had nothing to run, or was at its limit,
continues from the virtual time. So it saves up no turns, and loses none to entries that are
removed. Tags in use lie at most ``largest priority difference * HEAD_START + 1`` apart, so nothing
starves. (Start-time fair queueing, Goyal, Vin and Cheng, SIGCOMM 1996, with the virtual time of
Linux's completely fair scheduler.)

The module uses no clock, lock or thread, and is not thread-safe.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

HEAD_START = 8
"""How many turns one step of priority goes ahead."""


_Place: TypeAlias = "tuple[int, int, Entry[T]]"
"""Rank, sequence and entry. Tuples are compared without a call of Python code."""


class Entry(Generic[T]):
    """A waiting item. Keep the entry if you may want to remove it."""

    __slots__ = ("advance", "flow", "item", "rank", "sequence")

    def __init__(self, flow: Flow[T], item: T, priority: int, sequence: int) -> None:
        self.flow = flow
        self.item: T | None = item
        self.advance = priority * HEAD_START
        self.rank = flow.arrivals - self.advance
        self.sequence = sequence


class Flow(Generic[T]):
    """One network's lane: its waiting entries, and how many items run and may run at once."""

    __slots__ = ("arrivals", "heap", "limit", "running", "tag", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0
        self.waiting = 0
        self.arrivals = 0
        self.tag = 0
        self.heap: list[_Place[T]] = []


class FairQueue(Generic[T]):
    """The entries of several flows. Each flow has a limit on how many of its items run at once.

    Attributes:
        length: the number of entries.
    """

    def __init__(self) -> None:
        self._active: dict[Flow[T], None] = {}
        self._virtual_time = 0
        self._sequence = 0
        self.length = 0

    def __len__(self) -> int:
        return self.length

    def push(self, flow: Flow[T], item: T, priority: int = 0) -> Entry[T]:
        flow.arrivals += 1
        self._sequence += 1
        entry = Entry(flow, item, priority, self._sequence)
        heapq.heappush(flow.heap, (entry.rank, entry.sequence, entry))
        flow.waiting += 1
        self.length += 1
        self._active[flow] = None
        return entry

    def pop(self) -> tuple[Flow[T], T] | None:
        """Takes out the next item whose flow is below its limit. It counts as running until
        `finished`."""
        best: Entry[T] | None = None
        best_turn = (0, 0)
        least_tag = 0
        for flow in self._active:
            if flow.running >= flow.limit:
                continue
            tag = flow.tag = max(flow.tag, self._virtual_time)
            head = self._head(flow)
            turn = (tag - head.advance, head.sequence)
            if best is None:
                best, best_turn, least_tag = head, turn, tag
                continue
            least_tag = min(least_tag, tag)
            if turn < best_turn:
                best, best_turn = head, turn
        if best is None:
            return None
        self._virtual_time = least_tag
        flow, item = best.flow, best.item
        assert item is not None
        flow.tag += 1
        flow.running += 1
        heapq.heappop(flow.heap)
        best.item = None
        self._forget(flow)
        return flow, item

    def head(self, flow: Flow[T]) -> T | None:
        """The flow's next item, which stays in the queue."""
        return self._head(flow).item if flow.waiting else None

    def take(self, flow: Flow[T]) -> T:
        """Takes out the flow's next item, whatever its limit. It takes its turn, but does not count
        as running."""
        entry = self._head(flow)
        item = entry.item
        assert item is not None
        heapq.heappop(flow.heap)
        entry.item = None
        flow.tag = max(flow.tag, self._virtual_time) + 1
        self._forget(flow)
        return item

    def put_back(self, entry: Entry[T], item: T) -> None:
        """Undoes `take`: the item waits in its old place."""
        flow = entry.flow
        entry.item = item
        heapq.heappush(flow.heap, (entry.rank, entry.sequence, entry))
        flow.tag -= 1
        flow.waiting += 1
        self.length += 1
        self._active[flow] = None

    def finished(self, flow: Flow[T]) -> None:
        """Records that one item of `flow` no longer runs."""
        flow.running -= 1

    def remove(self, entry: Entry[T]) -> bool:
        """Takes out an entry. Returns False if it has left already."""
        if entry.item is None:
            return False
        entry.item = None
        flow = entry.flow
        self._forget(flow)
        if len(flow.heap) > 2 * flow.waiting + 16:
            flow.heap = [place for place in flow.heap if place[2].item is not None]
            heapq.heapify(flow.heap)
        return True

    def drain(self) -> list[T]:
        """Takes out and returns every item."""
        items = [e.item for flow in self._active for *_, e in flow.heap if e.item is not None]
        for flow in self._active:
            for *_, entry in flow.heap:
                entry.item = None
            flow.heap = []
            flow.waiting = 0
        self._active.clear()
        self.length = 0
        return items

    def _forget(self, flow: Flow[T]) -> None:
        flow.waiting -= 1
        self.length -= 1
        if not flow.waiting:
            flow.heap.clear()
            del self._active[flow]

    @staticmethod
    def _head(flow: Flow[T]) -> Entry[T]:
        while (entry := flow.heap[0][2]).item is None:
            heapq.heappop(flow.heap)
        return entry
