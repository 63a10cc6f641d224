"""The timing wheel on a manual clock, and the thread around it."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runtime.execution.timer import Timer, TimerEntry, TimerWheel
from tests.support.gate import Gate
from tests.support.manual_clock import ManualClock
from tests.support.patience import PATIENCE_SECONDS


def nothing() -> None:
    """A callback that is only told apart by its entry."""


@pytest.fixture
def timer() -> Iterator[Timer]:
    timer = Timer()
    yield timer
    timer.stop()


# -- the wheel --


@given(st.floats(0, 1e9), st.sampled_from([0.001, 0.005, 0.1, 1 / 3, 9.375]))
@settings(max_examples=500)
def test_an_entry_is_due_never_early_and_late_by_at_most_the_resolution(
    when: float, resolution: float
) -> None:
    wheel = TimerWheel()
    entry = wheel.schedule(when, nothing, resolution)
    slot = wheel.next_slot()
    assert slot is not None
    assert when <= slot <= when + resolution + 8 * math.ulp(when)
    assert wheel.take_due(math.nextafter(slot, -math.inf)) == []
    assert wheel.take_due(slot) == [entry]


def test_entries_of_one_slot_share_a_bucket() -> None:
    wheel = TimerWheel()
    for when in (1.001, 1.002, 1.003):
        wheel.schedule(when, nothing, 0.005)
    assert wheel.slots == 1
    assert len(wheel) == 3


def test_a_cancelled_entry_is_never_due_and_wakes_nobody() -> None:
    wheel = TimerWheel()
    cancelled = wheel.schedule(1.0, nothing, 0.005)
    kept = wheel.schedule(2.0, nothing, 0.005)
    wheel.cancel(cancelled)
    wheel.cancel(cancelled)
    assert wheel.next_slot() == pytest.approx(2.0)
    assert wheel.take_due(3.0) == [kept]
    wheel.cancel(kept)
    assert len(wheel) == 0


def test_cancelled_far_deadlines_take_no_room() -> None:
    wheel = TimerWheel()
    for index in range(10_000):
        wheel.cancel(wheel.schedule(3600 + index * 0.005, nothing, 0.005))
    assert wheel.slots < 200


def test_a_bucket_that_was_emptied_takes_entries_again() -> None:
    wheel = TimerWheel()
    for _ in range(1000):
        wheel.cancel(wheel.schedule(1.0, nothing, 0.005))
    entry = wheel.schedule(1.0, nothing, 0.005)
    assert wheel.slots == 1
    assert wheel.take_due(1.1) == [entry]


@pytest.mark.parametrize("when", [math.inf, 1.7e308])
def test_a_deadline_at_the_end_of_time_is_taken_and_never_due(when: float) -> None:
    wheel = TimerWheel()
    entry = wheel.schedule(when, nothing, 0.005)
    assert wheel.take_due(1e12) == []
    wheel.cancel(entry)
    assert len(wheel) == 0


STEPS = st.one_of(
    st.tuples(st.just("schedule"), st.floats(0, 2.0)),
    st.tuples(st.just("cancel"), st.floats(0, 1.0)),
    st.tuples(st.just("advance"), st.floats(0, 0.5)),
)


@given(st.lists(STEPS, max_size=200))
@settings(max_examples=200)
def test_every_entry_is_due_once_in_order_unless_cancelled(steps: list[tuple[str, float]]) -> None:
    clock, wheel = ManualClock(), TimerWheel()
    waiting: dict[TimerEntry, None] = {}
    for action, number in steps:
        if action == "schedule":
            waiting[wheel.schedule(clock.now + number, nothing, 0.005)] = None
        elif action == "cancel" and waiting:
            entry = list(waiting)[int(number * (len(waiting) - 1))]
            del waiting[entry]
            wheel.cancel(entry)
        elif action == "advance":
            due = wheel.take_due(clock.advance(number))
            assert [entry.slot for entry in due] == sorted(entry.slot for entry in due)
            assert set(due) == {entry for entry in waiting if entry.slot <= clock.now}
            for entry in due:
                del waiting[entry]
        assert len(wheel) == len(waiting)
        first = min((entry.slot for entry in waiting), default=None)
        assert wheel.next_slot() == first


# -- the thread --


def wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS)


def test_a_callback_runs_on_the_timers_thread_and_not_before_its_time(timer: Timer) -> None:
    called, seen = threading.Event(), []

    def callback() -> None:
        seen.append((time.monotonic(), threading.current_thread().name))
        called.set()

    when = time.monotonic() + 0.02
    timer.schedule(when, callback)
    wait_for(called)
    assert seen[0][0] >= when
    assert seen[0][1] == "headrace-timer"


def test_an_earlier_deadline_is_not_held_up_by_a_later_one(timer: Timer) -> None:
    called = threading.Event()
    timer.schedule(time.monotonic() + 3600, nothing)
    timer.schedule(time.monotonic() + 0.01, called.set)
    wait_for(called)


def test_a_deadline_in_the_past_is_called_at_once(timer: Timer) -> None:
    called = threading.Event()
    timer.schedule(time.monotonic() - 5, called.set)
    wait_for(called)


@pytest.mark.parametrize("seconds", [1e10, 1e300, math.inf])
def test_a_deadline_in_the_far_future_does_not_end_the_thread(timer: Timer, seconds: float) -> None:
    # threading refuses to wait for more than threading.TIMEOUT_MAX seconds.
    timer.schedule(time.monotonic() + seconds, nothing)
    called = threading.Event()
    timer.schedule(time.monotonic() + 0.01, called.set)
    wait_for(called)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_callback_that_raises_does_not_keep_others_from_being_called(
    timer: Timer, error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error("a bug")

    called = threading.Event()
    timer.schedule(time.monotonic(), fail)
    timer.schedule(time.monotonic() + 0.01, called.set)
    wait_for(called)


def test_what_was_called_is_not_kept(timer: Timer) -> None:
    gone, owner = threading.Event(), Gate()
    weakref.finalize(owner, gone.set)
    timer.schedule(0.0, owner.open)
    del owner
    assert gone.wait(PATIENCE_SECONDS)


def test_a_cancelled_call_does_not_happen(timer: Timer) -> None:
    calls: list[str] = []
    done, busy = threading.Event(), Gate()
    now = time.monotonic()
    timer.schedule(now, busy)
    busy.await_arrivals()  # the thread comes to the next call after the cancel
    timer.cancel(timer.schedule(now, lambda: calls.append("cancelled")))
    timer.schedule(time.monotonic(), done.set)
    busy.open()
    wait_for(done)
    assert calls == []


def test_a_callback_may_schedule_and_cancel(timer: Timer) -> None:
    called = threading.Event()

    def again() -> None:
        timer.cancel(timer.schedule(time.monotonic() + 1, nothing))
        timer.schedule(time.monotonic(), called.set)

    timer.schedule(time.monotonic(), again)
    wait_for(called)


def test_many_threads_schedule_and_each_call_happens_once(timer: Timer) -> None:
    counts = [0] * 800
    left = threading.Semaphore(0)

    def call(index: int) -> Callable[[], None]:
        def callback() -> None:
            counts[index] += 1
            left.release()

        return callback

    def submit(offset: int) -> None:
        for index in range(offset, 800, 8):
            timer.schedule(time.monotonic() + (index % 7) / 1000, call(index))

    threads = [threading.Thread(target=submit, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(800):
        assert left.acquire(timeout=PATIENCE_SECONDS)
    for thread in threads:
        thread.join()
    assert counts == [1] * 800


class CountingCondition(threading.Condition):
    """Says how often the timer's thread was woken by a call of `notify`."""

    notified = 0

    def notify(self, n: int = 1) -> None:
        self.notified += 1
        super().notify(n)


def test_deadlines_that_come_and_go_behind_the_first_wake_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[CountingCondition] = []

    def condition(lock: threading.Lock) -> CountingCondition:
        made.append(CountingCondition(lock))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Condition", condition)
        timer = Timer()
    try:
        timer.schedule(time.monotonic() + 30, nothing)  # the first
        for index in range(1000):
            timer.cancel(timer.schedule(time.monotonic() + 60 + index / 100, nothing))
        assert made[0].notified <= 1
    finally:
        timer.stop()


def test_stop_ends_the_thread_and_drops_what_is_not_due() -> None:
    timer = Timer()
    calls: list[str] = []
    timer.schedule(time.monotonic() + 3600, lambda: calls.append("late"))
    timer.stop()
    assert calls == []
