"""Which requests run together, and when: pure, with the clock passed in.

Nothing waits for company while the device could run it: what comes first runs at once, and what
comes while the device is busy is collected and runs as one batch when a run ends. So batches grow
with the load, and a caller alone never waits. A request that has been collected for as long as the
timeout, or for half of the time that it had left until its deadline, is handed to the device with
the requests that fit, even if the device is busy, and waits in the device's own queue. The other
half is the device's. When to leave goes by no estimate of the device: under load that is mostly
queueing, and batches that shrink because a queue is long make it longer.

How many leave together does: no request joins a batch that would then end after another member's
deadline, judged by the recent time of a row.
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
"""By which a batch is taken to last longer than its rows did lately."""
_WEIGHT: Final = 0.25
"""Of the latest run, in what a row takes."""


class Member:
    """A request, as far as the scheduler looks at it.

    Attributes:
        group: only members of equal groups run together.
        rows: that it brings; more than a batch's size run alone.
        priority: higher goes first, within the bound of the timeout.
        deadline: by the scheduler's clock, in seconds; infinite if there is none.
        arrived: by the same clock.
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
        """To the deadline, from the arrival."""
        return (self.arrived + self.deadline) / 2


M = TypeVar("M", bound=Member)


class BatchScheduler(Generic[M]):
    """Takes events, gives batches to run: each a tuple of members to run together, now. Not
    thread-safe. Queues are dictionaries, in order of arrival.

    Args:
        size: rows of a batch, at most.
        slots: batches that the device runs at once.
        timeout: the longest that a member is collected, in seconds.
    """

    def __init__(self, size: int, slots: int, timeout: float) -> None:
        self.size = size
        self.slots = slots
        self.timeout = timeout
        self.running = 0
        self._again: deque[M] = deque()
        self._by_priority: dict[int, dict[M, None]] = {}
        self._by_group: dict[Hashable, dict[int, dict[M, None]]] = {}
        self._urgent: list[tuple[float, int, M]] = []  # by halfway; those that left stay a while
        self._arrivals = itertools.count()
        self._row_seconds = 0.0  # 0: not known, or the same for any number of rows

    @property
    def waiting(self) -> int:
        return sum(map(len, self._by_priority.values())) + len(self._again)

    @property
    def wakes_at(self) -> float | None:
        """When `tick` has to be called; None: not before another event."""
        first = self._first_due()
        return None if first is None else first[0]

    # -- events --

    def arrive(self, member: M, now: float) -> list[tuple[M, ...]]:
        """A request has come."""
        member.arrived = now
        self._by_priority.setdefault(member.priority, {})[member] = None
        group = self._by_group.setdefault(member.group, {})
        group.setdefault(member.priority, {})[member] = None
        if member.deadline < math.inf:
            heapq.heappush(self._urgent, (member.halfway, next(self._arrivals), member))
        return self.tick(now)

    def leave(self, member: M) -> bool:
        """Nobody waits for the member any more; False if it is not waiting, but runs or is over."""
        if member in self._again:
            self._again.remove(member)
            return True
        if not self._waits(member):
            return False
        self._remove(member)
        return True

    def ran(self, rows: int, seconds: float) -> None:
        """A batch of so many rows has taken so long on the device, without its time in the queue.
        To be told before `finished`, where the time depends on the rows."""
        took = seconds / rows
        known = self._row_seconds or took
        self._row_seconds = known + _WEIGHT * (took - known)

    def finished(self, now: float, again: Iterable[M] = ()) -> list[tuple[M, ...]]:
        """A run has ended.

        Args:
            again: members of a batch that failed as a whole: each runs once more, alone and before
                all others, so that only who is to blame fails.
        """
        self.running -= 1
        self._again.extend(again)
        return self.tick(now)

    def tick(self, now: float) -> list[tuple[M, ...]]:
        """Time has passed: what is to run now."""
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
        """Whose turn it is: the request whose time is up, else the first of the highest priority if
        the device has room."""
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
        """The leader and others of its group, by priority and then age, as long as there is room
        and no member gets late."""
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
        """What a batch takes on the device."""
        return _MARGIN * self._row_seconds * rows

    def _latest_end(self, member: M, now: float) -> float:
        """When a batch with the member has to end; whenever, if it is late even alone."""
        in_time = now + self._seconds(member.rows) <= member.deadline
        return member.deadline if in_time else math.inf

    def _first_due(self) -> tuple[float, M] | None:
        """Whose time is up first, and when."""
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
