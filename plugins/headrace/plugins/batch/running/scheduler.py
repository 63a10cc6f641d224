"""Decides which requests run together, and when. Pure: the clock is passed in.

No request waits for others while the device could run it. The first request runs at once. Requests
that come while the device is busy are collected, and run as one batch when a run ends. So batches
grow with the load, and a single caller never waits.

A request is collected for at most the timeout, and for at most half of the time that it had until
its deadline. Then it goes to the device with the requests that fit, even if the device is busy, and
waits in the device's own queue. The device has the other half of the time.

The scheduler does not estimate the device's time to decide when a request goes. Under load, that
time is mostly queueing. If a long queue made batches smaller, the queue would grow even longer.

The scheduler does use an estimate to decide how many requests go together. No request joins a batch
if the batch would then end after a member's deadline, judged by the recent time of a row.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar

_FEW: Final = 64
_MARGIN: Final = 1.25
"""The estimated time of a batch is the recent time of its rows times this factor."""
_WEIGHT: Final = 0.25
"""The weight of the latest run in the estimated time of a row."""


class QueuedRequest:
    """A request as the scheduler sees it.

    Attributes:
        group: only members of equal groups run together.
        rows: the number of its rows. If it has more than a batch takes, it runs alone.
        priority: a higher priority goes first, within the bound of the timeout.
        deadline: the time on the scheduler's clock, in seconds. Infinite if there is none.
        arrived: the time of arrival on the same clock.
    """

    __slots__ = ("arrived", "deadline", "group", "priority", "rows")

    def __init__(
        self, group: Hashable, rows: int = 1, priority: int = 0, deadline: float = math.inf
    ) -> None:
        self.group = group
        self.rows = rows
        self.priority = priority
        self.deadline = deadline
        self.arrived = 0.0

    @property
    def halfway(self) -> float:
        """The time halfway between the arrival and the deadline."""
        return (self.arrived + self.deadline) / 2


M = TypeVar("M", bound=QueuedRequest)


class BatchScheduler(Generic[M]):
    """Takes events and returns batches. A batch is a tuple of members to run together now. Not
    thread-safe. Queues are dictionaries in order of arrival.

    Args:
        size: most rows of a batch.
        slots: the number of batches that the device runs at once.
        timeout: the longest time that a member is collected, in seconds.
    """

    def __init__(self, size: int, slots: int, timeout: float) -> None:
        self.size = size
        self.slots = slots
        self.timeout = timeout
        self.running = 0
        self._again: deque[M] = deque()
        self._by_priority: dict[int, dict[M, None]] = {}
        self._by_group: dict[Hashable, dict[int, dict[M, None]]] = {}
        self._urgent: list[tuple[float, int, M]] = []  # by `halfway`; may hold members that left
        self._arrivals = itertools.count()
        self._row_seconds = 0.0  # 0: not known, or the same for any number of rows

    @property
    def waiting(self) -> int:
        return sum(map(len, self._by_priority.values())) + len(self._again)

    @property
    def wakes_at(self) -> float | None:
        """The time at which `tick` has to be called. None: not before another event."""
        first = self._first_due()
        return None if first is None else first[0]

    # -- events --

    def arrive(self, member: M, now: float) -> list[tuple[M, ...]]:
        """Handles a new request."""
        member.arrived = now
        self._by_priority.setdefault(member.priority, {})[member] = None
        group = self._by_group.setdefault(member.group, {})
        group.setdefault(member.priority, {})[member] = None
        if member.deadline < math.inf:
            heapq.heappush(self._urgent, (member.halfway, next(self._arrivals), member))
        return self.tick(now)

    def leave(self, member: M) -> bool:
        """Removes a member that nobody waits for any more. False if the member does not wait, but
        runs or has ended."""
        if member in self._again:
            self._again.remove(member)
            return True
        if not self._waits(member):
            return False
        self._remove(member)
        return True

    def ran(self, rows: int, seconds: float) -> None:
        """Notes how long a batch ran on the device, without its time in the queue. Call it before
        `finished`, but only if the time depends on the number of rows."""
        took = seconds / rows
        known = self._row_seconds or took
        self._row_seconds = known + _WEIGHT * (took - known)

    def finished(self, now: float, again: Iterable[M] = ()) -> list[tuple[M, ...]]:
        """Handles the end of a run.

        Args:
            again: the members of a batch that failed as a whole. Each member runs once more, alone
                and before all others, so that only the member that caused the failure fails.
        """
        self.running -= 1
        self._again.extend(again)
        return self.tick(now)

    def tick(self, now: float) -> list[tuple[M, ...]]:
        """Returns the batches that are to run now."""
        batches: list[tuple[M, ...]] = []
        while self._again and self.running < self.slots:
            batches.append((self._again.popleft(),))
            self.running += 1
        while (leader := self._leader(now)) is not None:
            batches.append(self._take(leader, now))
            self.running += 1
        return batches

    # -- choice --

    def _leader(self, now: float) -> M | None:
        """The request whose turn it is: a request whose time is up. If there is none and the device
        has room, the oldest request of the highest priority."""
        due = self._first_due()
        if due is None:
            return None
        when, first = due
        if now >= when:
            return first
        if self.running >= self.slots:
            return None
        return next(iter(self._by_priority[max(self._by_priority)]))

    def _take(self, leader: M, now: float) -> tuple[M, ...]:
        """Takes the leader and others of its group, by priority and then by age, while there is
        room and no member would miss its deadline."""
        chosen, rows, end = [leader], leader.rows, self._latest_end(leader, now)
        for member in self._of_group(leader.group):
            if rows >= self.size:
                break
            if member is leader:
                continue
            if rows + member.rows > self.size:
                break
            end = min(end, self._latest_end(member, now))
            if now + self._seconds(rows + member.rows) > end:
                break
            chosen.append(member)
            rows += member.rows
        for member in chosen:
            self._remove(member)
        return tuple(chosen)

    def _seconds(self, rows: int) -> float:
        """The estimated time of a batch on the device."""
        return _MARGIN * self._row_seconds * rows

    def _latest_end(self, member: M, now: float) -> float:
        """The time by which a batch with the member has to end. Infinite if the member would miss
        its deadline even alone."""
        in_time = now + self._seconds(member.rows) <= member.deadline
        return member.deadline if in_time else math.inf

    def _first_due(self) -> tuple[float, M] | None:
        """The member whose time is up first, and that time."""
        heads = (next(iter(queue)) for queue in self._by_priority.values())
        oldest = min(heads, key=lambda member: member.arrived, default=None)
        if oldest is None:
            self._urgent.clear()
            return None
        timed_out = oldest.arrived + self.timeout
        while self._urgent and not self._waits(self._urgent[0][2]):
            heapq.heappop(self._urgent)
        if self._urgent and self._urgent[0][0] < timed_out:
            return self._urgent[0][0], self._urgent[0][2]
        return timed_out, oldest

    def _waits(self, member: M) -> bool:
        return member in self._by_priority.get(member.priority, ())

    def _of_group(self, group: Hashable) -> Iterator[M]:
        queues = self._by_group[group]
        for priority in sorted(queues, reverse=True):
            yield from queues[priority]

    def _remove(self, member: M) -> None:
        group = self._by_group[member.group]
        for table in (self._by_priority, group):
            del table[member.priority][member]
            if not table[member.priority]:
                del table[member.priority]
        if not group:
            del self._by_group[member.group]
        if len(self._urgent) > 2 * self.waiting + _FEW:
            self._urgent = [entry for entry in self._urgent if self._waits(entry[2])]
            heapq.heapify(self._urgent)
