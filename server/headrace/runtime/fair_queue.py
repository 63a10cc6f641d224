"""The order in which waiting work runs: by priority with ageing, fair between networks.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with priorities as a head start. Each
entry gets a tag, one more than its flow's last tag or than the queue's virtual time, whichever is
later; the virtual time is the largest tag served. The entry with the least `tag - priority *
HEAD_START` goes next. So flows with equal priority take turns however long their queues are, and an
entry is overtaken by at most ``priority difference * HEAD_START`` later rounds: nothing starves.

Pure and not thread-safe: no clock, no lock, no thread.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")

HEAD_START = 8
"""Rounds by which one step of priority overtakes."""


class Entry(Generic[T]):
    """A waiting item; keep it to remove it."""

    __slots__ = ("flow", "item", "key", "tag")

    def __init__(self, flow: Flow[T], item: T, tag: int, key: tuple[int, int]) -> None:
        self.flow = flow
        self.item: T | None = item
        self.tag = tag
        self.key = key

    def __lt__(self, other: Entry[T]) -> bool:
        return self.key < other.key


class Flow(Generic[T]):
    """One network's lane: how many of its items may run at once, and how many do."""

    __slots__ = ("heap", "last_tag", "limit", "running", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0
        self.waiting = 0
        self.last_tag = 0
        self.heap: list[Entry[T]] = []

    @property
    def eligible(self) -> bool:
        return self.waiting > 0 and self.running < self.limit


class FairQueue(Generic[T]):
    """Entries of several flows, each with a limit on how many of it run at once."""

    def __init__(self) -> None:
        self._active: dict[Flow[T], None] = {}
        self._virtual_time = 0
        self._sequence = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, flow: Flow[T], item: T, priority: int = 0) -> Entry[T]:
        tag = max(self._virtual_time, flow.last_tag) + 1
        flow.last_tag = tag
        self._sequence += 1
        entry = Entry(flow, item, tag, (tag - priority * HEAD_START, self._sequence))
        heapq.heappush(flow.heap, entry)
        flow.waiting += 1
        self._length += 1
        self._active[flow] = None
        return entry

    def pop(self) -> tuple[Flow[T], T] | None:
        """The next item whose flow is below its limit; it counts as running until `finished`."""
        best: Flow[T] | None = None
        for flow in self._active:
            if flow.eligible and (best is None or self._head(flow) < self._head(best)):
                best = flow
        if best is None:
            return None
        entry = heapq.heappop(best.heap)
        item, entry.item = entry.item, None
        assert item is not None
        self._forget(best)
        self._virtual_time = max(self._virtual_time, entry.tag)
        best.running += 1
        return best, item

    def finished(self, flow: Flow[T]) -> None:
        """One item of `flow` no longer runs."""
        flow.running -= 1

    def remove(self, entry: Entry[T]) -> bool:
        """Takes out an entry; False if it has left already."""
        if entry.item is None:
            return False
        entry.item = None
        flow = entry.flow
        self._forget(flow)
        if len(flow.heap) > 2 * flow.waiting + 16:
            flow.heap = [kept for kept in flow.heap if kept.item is not None]
            heapq.heapify(flow.heap)
        return True

    def drain(self) -> list[T]:
        """Takes out everything."""
        items = [e.item for flow in self._active for e in flow.heap if e.item is not None]
        for flow in self._active:
            for entry in flow.heap:
                entry.item = None
            flow.heap = []
            flow.waiting = 0
        self._active.clear()
        self._length = 0
        return items

    def _forget(self, flow: Flow[T]) -> None:
        flow.waiting -= 1
        self._length -= 1
        if not flow.waiting:
            flow.heap.clear()
            del self._active[flow]

    @staticmethod
    def _head(flow: Flow[T]) -> Entry[T]:
        while flow.heap[0].item is None:
            heapq.heappop(flow.heap)
        return flow.heap[0]
