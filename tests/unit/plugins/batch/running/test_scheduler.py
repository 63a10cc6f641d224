"""Who runs with whom, and when; and thousands of random sequences on a simulated clock."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest

from headrace.plugins.batch.running.scheduler import BatchScheduler, QueuedRequest

Batch: TypeAlias = tuple[QueuedRequest, ...]
Scheduler: TypeAlias = BatchScheduler[QueuedRequest]


def members(count: int, group: str = "g", rows: int = 1) -> list[QueuedRequest]:
    return [QueuedRequest(group, rows) for _ in range(count)]


def arrive(scheduler: Scheduler, *coming: QueuedRequest, now: float = 0.0) -> list[Batch]:
    return [batch for member in coming for batch in scheduler.arrive(member, now)]


def busy(size: int = 4, slots: int = 1, timeout: float = 1.0) -> Scheduler:
    """A scheduler whose slots are all taken."""
    scheduler: Scheduler = BatchScheduler(size, slots, timeout)
    arrive(scheduler, *members(slots, "first"))
    assert scheduler.running == slots
    return scheduler


def test_a_request_alone_runs_at_once() -> None:
    scheduler: Scheduler = BatchScheduler(8, 1, 1.0)
    (one,) = members(1)
    assert arrive(scheduler, one) == [(one,)]
    assert scheduler.wakes_at is None


def test_what_comes_while_the_device_is_busy_runs_together_when_it_is_free() -> None:
    scheduler = busy()
    waiting = members(3)
    assert arrive(scheduler, *waiting) == []
    assert scheduler.finished(0.1) == [tuple(waiting)]


def test_a_batch_has_at_most_its_size() -> None:
    scheduler = busy(size=4)
    waiting = members(6)
    arrive(scheduler, *waiting)
    assert scheduler.finished(0.1) == [tuple(waiting[:4])]
    assert scheduler.finished(0.2) == [tuple(waiting[4:])]


def test_as_many_batches_run_as_there_are_slots() -> None:
    scheduler: Scheduler = BatchScheduler(4, 2, 1.0)
    one, two, three = members(3)
    assert arrive(scheduler, one, two, three) == [(one,), (two,)]
    assert scheduler.finished(0.1) == [(three,)]


def test_requests_of_different_groups_do_not_run_together() -> None:
    scheduler = busy()
    short, long, short2 = QueuedRequest("short"), QueuedRequest("long"), QueuedRequest("short")
    arrive(scheduler, short, long, short2)
    assert scheduler.finished(0.1) == [(short, short2)]
    assert scheduler.finished(0.2) == [(long,)]


def test_rows_count_and_not_requests() -> None:
    scheduler = busy(size=4)
    two, three, one = QueuedRequest("g", 2), QueuedRequest("g", 3), QueuedRequest("g", 1)
    arrive(scheduler, two, three, one)
    assert scheduler.finished(0.1) == [(two,)]
    assert scheduler.finished(0.2) == [(three, one)]


def test_a_request_larger_than_a_batch_runs_alone() -> None:
    scheduler = busy(size=4)
    large, small = QueuedRequest("g", 9), QueuedRequest("g", 1)
    arrive(scheduler, large, small)
    assert scheduler.finished(0.1) == [(large,)]


def test_higher_priority_goes_first() -> None:
    scheduler = busy(size=2)
    low, high, middle = (
        QueuedRequest("g"),
        QueuedRequest("g", priority=5),
        QueuedRequest("g", priority=1),
    )
    arrive(scheduler, low, high, middle)
    assert scheduler.finished(0.1) == [(high, middle)]


def test_whoever_has_waited_for_the_timeout_is_handed_over_with_whoever_fits() -> None:
    scheduler = busy(size=4, timeout=1.0)
    early, late = members(2)
    arrive(scheduler, early, now=0.5)
    arrive(scheduler, late, now=1.4)
    assert scheduler.wakes_at == 1.5
    assert scheduler.tick(1.4) == []
    assert scheduler.tick(1.5) == [(early, late)]
    assert scheduler.running == 2
    assert scheduler.wakes_at is None


def test_a_batch_leaves_early_for_a_deadline_that_is_nearer_than_the_timeout() -> None:
    scheduler = busy(size=4, timeout=1.0)
    patient, urgent = QueuedRequest("g"), QueuedRequest("g", deadline=0.5)
    arrive(scheduler, patient, now=0.0)
    arrive(scheduler, urgent, now=0.1)
    assert scheduler.wakes_at == pytest.approx(0.3)  # half of what was left: the rest is to run in
    assert scheduler.tick(0.29) == []
    assert scheduler.tick(0.31) == [(urgent, patient)]
    assert scheduler.wakes_at is None


def test_a_far_deadline_makes_no_batch_leave_early() -> None:
    scheduler = busy(size=4, timeout=1.0)
    arrive(scheduler, QueuedRequest("g", deadline=60.0))
    assert scheduler.wakes_at == 1.0


def test_the_nearest_deadline_counts_whoever_came_first() -> None:
    scheduler = busy(size=1, timeout=1.0)
    later, sooner = QueuedRequest("g", deadline=0.8), QueuedRequest("g", deadline=0.2)
    arrive(scheduler, later, sooner)
    assert scheduler.tick(0.1) == [(sooner,)]
    assert scheduler.wakes_at == 0.4


def test_a_deadline_of_one_that_has_left_hurries_nobody() -> None:
    scheduler = busy(timeout=1.0)
    urgent, patient = QueuedRequest("g", deadline=0.2), QueuedRequest("g")
    arrive(scheduler, urgent, patient)
    scheduler.leave(urgent)
    assert scheduler.wakes_at == 1.0
    assert scheduler.tick(0.5) == []


def test_deadlines_of_those_that_are_gone_take_no_room() -> None:
    scheduler = busy(size=1, timeout=1000.0)
    stays = QueuedRequest("g", deadline=5000.0)
    arrive(scheduler, stays)
    for _ in range(1000):
        member = QueuedRequest("g", deadline=9000.0)
        arrive(scheduler, member)
        scheduler.leave(member)
    assert len(scheduler._urgent) < 100
    assert scheduler.finished(1.0) == [(stays,)]


def learned(scheduler: Scheduler, row_seconds: float) -> Scheduler:
    """The scheduler when all runs have taken so long."""
    scheduler.ran(4, 4 * row_seconds)
    return scheduler


def test_nobody_joins_a_batch_that_would_end_after_a_deadline_in_it() -> None:
    scheduler = learned(busy(size=8), row_seconds=0.08)  # 0.1 with the margin
    urgent, *patient = QueuedRequest("g", deadline=0.35), *members(7)
    arrive(scheduler, urgent, *patient)
    assert scheduler.finished(0.04) == [(urgent, *patient[:2])]
    assert scheduler.finished(0.05) == [tuple(patient[2:])]


def test_whoever_is_in_a_hurry_joins_none_that_would_end_too_late() -> None:
    scheduler = learned(busy(size=8), row_seconds=0.08)
    *patient, urgent = *members(4), QueuedRequest("g", deadline=0.35)
    arrive(scheduler, *patient, urgent)
    assert scheduler.finished(0.04) == [tuple(patient)]
    assert scheduler.finished(0.05) == [(urgent,)]


def test_a_batch_is_as_large_as_its_members_deadlines_allow() -> None:
    scheduler = learned(busy(size=8), row_seconds=0.08)
    waiting = [QueuedRequest("g", deadline=0.45) for _ in range(6)]
    arrive(scheduler, *waiting)
    assert scheduler.finished(0.1) == [tuple(waiting[:3])]
    assert scheduler.finished(0.11) == [tuple(waiting[3:])]


def test_one_that_is_late_even_alone_makes_no_batch_smaller() -> None:
    scheduler = learned(busy(size=8), row_seconds=0.08)
    late, *others = QueuedRequest("g", deadline=0.15), *members(5)
    arrive(scheduler, late, *others)
    assert scheduler.finished(0.07) == [(late, *others)]


def test_without_deadlines_batches_are_full_however_long_they_take() -> None:
    scheduler = learned(busy(size=4), row_seconds=100.0)
    waiting = members(4)
    arrive(scheduler, *waiting)
    assert scheduler.finished(0.1) == [tuple(waiting)]


def test_what_a_row_takes_follows_the_latest_runs() -> None:
    scheduler = learned(busy(size=8), row_seconds=10.0)
    for _ in range(40):
        scheduler.ran(4, 4 * 0.008)
    waiting = [QueuedRequest("g", deadline=0.45) for _ in range(6)]
    arrive(scheduler, *waiting)
    assert scheduler.finished(0.1) == [tuple(waiting)]


def test_low_priority_waits_no_longer_than_the_timeout() -> None:
    scheduler = busy(size=1, timeout=1.0)
    low = QueuedRequest("g", priority=-10)
    arrive(scheduler, low)
    for step in range(1, 10):
        arrive(scheduler, QueuedRequest("g", priority=10), now=step / 10)
        assert all(low not in batch for batch in scheduler.finished(step / 10))
    assert (low,) in arrive(scheduler, QueuedRequest("g", priority=10), now=1.0)


def test_after_an_early_hand_over_nothing_starts_before_there_is_room_again() -> None:
    scheduler = busy(size=1, timeout=1.0)
    arrive(scheduler, *members(1), now=0.0)
    assert len(scheduler.tick(1.0)) == 1
    arrive(scheduler, *members(1), now=1.1)
    assert scheduler.finished(1.2) == []
    assert len(scheduler.finished(1.3)) == 1


def test_one_that_leaves_while_it_waits_runs_never() -> None:
    scheduler = busy()
    one, two = members(2)
    arrive(scheduler, one, two)
    assert scheduler.leave(one)
    assert scheduler.finished(0.1) == [(two,)]


def test_one_that_runs_cannot_leave() -> None:
    scheduler: Scheduler = BatchScheduler(4, 1, 1.0)
    (one,) = members(1)
    arrive(scheduler, one)
    assert not scheduler.leave(one)


def test_members_of_a_failed_batch_run_again_alone_and_before_others() -> None:
    scheduler = busy()
    failed = members(2)
    arrive(scheduler, *failed)
    scheduler.finished(0.1)
    arrive(scheduler, *members(1, "other"), now=0.2)
    assert scheduler.finished(0.3, again=failed) == [(failed[0],)]
    assert scheduler.finished(0.4) == [(failed[1],)]


def test_one_that_is_to_run_again_may_leave() -> None:
    scheduler = busy()
    failed = members(2)
    arrive(scheduler, *failed)
    scheduler.finished(0.1)
    scheduler.finished(0.2, again=failed)
    assert scheduler.leave(failed[1])
    assert scheduler.finished(0.3) == []
    assert scheduler.waiting == 0


# -- the simulated clock --


@dataclass
class Bench:
    """Random events against a scheduler; what has to hold is checked after each."""

    random: random.Random
    scheduler: Scheduler
    now: float = 0.0
    running: list[Batch] = field(default_factory=list)
    waiting: set[QueuedRequest] = field(default_factory=set)
    retried: set[QueuedRequest] = field(default_factory=set)
    answered: list[QueuedRequest] = field(default_factory=list)
    arrived: int = 0

    def run(self, batches: list[Batch]) -> None:
        for batch in batches:
            assert batch, "an empty batch"
            rows = sum(member.rows for member in batch)
            assert rows <= self.scheduler.size or len(batch) == 1, "too many rows"
            assert len({member.group for member in batch}) == 1, "groups are mixed"
            assert len(set(batch)) == len(batch)
            if any(member in self.retried for member in batch):
                assert len(batch) == 1, "one that failed in company has company again"
            assert self.waiting.issuperset(batch), "one runs that does not wait"
            self.waiting.difference_update(batch)
            self.running.append(batch)

    def arrive(self) -> None:
        member = QueuedRequest(
            self.random.choice("aab"),
            self.random.choice((1, 1, 1, 2, 5, 9)),
            self.random.randrange(3),
            self.now + self.random.choice((math.inf, math.inf, 0.02, 0.2, 3.0)),
        )
        self.arrived += 1
        self.waiting.add(member)
        self.run(self.scheduler.arrive(member, self.now))

    def complete(self) -> None:
        if not self.running:
            return
        batch = self.running.pop(self.random.randrange(len(self.running)))
        self.scheduler.ran(sum(each.rows for each in batch), self.random.expovariate(20.0))
        again: tuple[QueuedRequest, ...] = ()
        if len(batch) > 1 and self.random.random() < 0.2:
            again = batch  # it failed as a whole
            self.retried.update(again)
            self.waiting.update(again)
        else:
            self.answered += batch
        self.run(self.scheduler.finished(self.now, again))

    def cancel(self) -> None:
        candidates = [*self.waiting, *(member for batch in self.running for member in batch)]
        if not candidates:
            return
        candidates.sort(key=lambda member: (member.arrived, member.rows, member.priority))
        member = self.random.choice(candidates)
        left = self.scheduler.leave(member)
        assert left == (member in self.waiting)
        if left:
            self.waiting.remove(member)
            self.answered.append(member)

    def elapse(self) -> None:
        """To the next moment, but never past the one at which the scheduler wants to be woken."""
        wanted = self.scheduler.wakes_at
        self.now += self.random.expovariate(20.0)
        if wanted is not None and wanted <= self.now:
            self.now = wanted
            self.run(self.scheduler.tick(self.now))
        late = [member for member in self.waiting if member.deadline <= self.now]
        assert self.retried.issuperset(late), "one expires that nobody has handed over"
        for member in late:
            assert self.scheduler.leave(member)
            self.waiting.remove(member)
            self.answered.append(member)

    def check(self) -> None:
        scheduler = self.scheduler
        assert scheduler.waiting == len(self.waiting)
        assert scheduler.running == len(self.running)
        assert not self.waiting or scheduler.running >= scheduler.slots, "an idle slot"
        first_time = self.waiting - self.retried
        for member in first_time:
            assert self.now < member.arrived + scheduler.timeout, "one waits for too long"
            assert self.now < member.halfway, "one waits too close to its deadline"
        assert (scheduler.wakes_at is None) == (not first_time)


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_whatever_happens_each_is_answered_once_and_no_slot_idles(first: int) -> None:
    for seed in range(first, first + 250):
        simulate(random.Random(seed))


def simulate(chance: random.Random) -> None:
    scheduler: Scheduler = BatchScheduler(
        size=chance.choice((2, 4, 8)),
        slots=chance.choice((1, 2, 3)),
        timeout=chance.choice((0.05, 1)),
    )
    bench = Bench(chance, scheduler)
    events = [bench.arrive] * chance.randint(1, 4) + [bench.complete] * 2
    events += [bench.elapse] * 2 + [bench.cancel]
    for _ in range(60):
        chance.choice(events)()
        bench.check()
    while bench.running or bench.waiting:
        bench.complete()
        bench.check()
    assert len(bench.answered) == len(set(bench.answered)) == bench.arrived
