"""Completions come to the event loop's thread: each one once, in order, with few wake-ups."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from headrace.runtime.errors import Cancelled, DeadlineExceeded
from headrace.runtime.execution.job import Job
from headrace.server.serving.completion_sink import CompletionSink, ended
from tests.support.gate import Gate, join, run_together


class Loop:
    """The part of an event loop that the sink uses; runs what waits when the test says so."""

    def __init__(self) -> None:
        self.wakeups: list[Callable[[], object]] = []

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        self.wakeups.append(callback)

    def run(self) -> None:
        self.wakeups.pop(0)()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def sink(loop: Loop) -> CompletionSink:
    return CompletionSink(cast(asyncio.AbstractEventLoop, loop))


class Waiter:
    """A future that records its results."""

    def __init__(self) -> None:
        self.results: list[None] = []

    def done(self) -> bool:
        return bool(self.results)

    def set_result(self, result: None) -> None:
        self.results.append(result)


def elsewhere(action: Callable[[], object]) -> None:
    """Calls `action` on another thread, and returns when it has."""
    thread = threading.Thread(target=action)
    thread.start()
    join(thread)


def jobs(count: int) -> list[Job]:
    return [Job({}, lambda _: None) for _ in range(count)]


def test_on_the_loop_s_own_thread_a_completion_is_delivered_at_once(
    sink: CompletionSink, loop: Loop
) -> None:
    delivered: list[Job] = []
    (job,) = jobs(1)
    sink.put(delivered.append, job)
    assert delivered == [job]
    assert not loop.wakeups


def test_completions_of_another_thread_wait_for_the_loop_and_wake_it_once(
    sink: CompletionSink, loop: Loop
) -> None:
    delivered: list[Job] = []
    many = jobs(100)

    def put() -> None:
        for job in many:
            sink.put(delivered.append, job)

    elsewhere(put)
    assert not delivered
    assert len(loop.wakeups) == 1
    loop.run()
    assert delivered == many


def test_a_completion_on_the_loop_s_own_thread_comes_after_those_that_wait(
    sink: CompletionSink, loop: Loop
) -> None:
    delivered: list[Job] = []
    first, second, third = jobs(3)
    elsewhere(lambda: sink.put(delivered.append, first))
    sink.put(delivered.append, second)
    elsewhere(lambda: sink.put(delivered.append, third))
    assert delivered == [first, second]
    assert len(loop.wakeups) == 1
    loop.run()
    assert delivered == [first, second, third]


def test_what_comes_while_completions_are_delivered_is_not_left_behind(
    sink: CompletionSink, loop: Loop
) -> None:
    delivered: list[Job] = []
    first, second = jobs(2)

    def deliver(job: Job) -> None:
        delivered.append(job)
        if job is first:
            elsewhere(lambda: sink.put(deliver, second))

    elsewhere(lambda: sink.put(deliver, first))
    while loop.wakeups:
        loop.run()
    assert delivered == [first, second]


def test_a_task_is_woken_at_once_by_its_own_thread(sink: CompletionSink, loop: Loop) -> None:
    (job,) = jobs(1)
    sink.wake(job)  # nobody waits yet
    job.waiter = Waiter()
    sink.wake(job)
    sink.wake(job)
    assert job.waiter.results == [None]
    assert not loop.wakeups


def test_a_task_is_woken_by_another_thread_after_those_before_it(
    sink: CompletionSink, loop: Loop
) -> None:
    first, second = jobs(2)
    first.waiter, second.waiter = Waiter(), Waiter()
    elsewhere(lambda: sink.wake(first))
    assert not first.waiter.results
    assert len(loop.wakeups) == 1
    sink.wake(second)
    assert first.waiter.results == second.waiter.results == [None]


def test_completions_of_many_threads_are_each_delivered_once() -> None:
    threads, each = 8, 500

    async def run() -> list[Any]:
        delivered: list[Job] = []
        done = asyncio.Event()

        def deliver(job: Job) -> None:
            delivered.append(job)
            if len(delivered) == threads * each:
                done.set()

        sink = CompletionSink(asyncio.get_running_loop())
        batches = [jobs(each) for _ in range(threads)]

        def put(batch: list[Job]) -> None:
            for job in batch:
                sink.put(deliver, job)

        actions = [lambda batch=batch: put(batch) for batch in batches]
        await asyncio.to_thread(run_together, *actions)
        await done.wait()
        assert {id(job) for job in delivered} == {id(job) for batch in batches for job in batch}
        return delivered

    assert len(asyncio.run(run())) == threads * each


def test_nobody_hears_of_an_outcome_before_the_observers_know() -> None:
    async def run() -> None:
        sink, gate = CompletionSink(asyncio.get_running_loop()), Gate()
        told: list[str] = []

        def observe(_: Job) -> None:
            gate()
            told.append("observer")

        job = Job({}, sink.wake)
        job.observe(observe)
        thread = threading.Thread(target=job.complete)
        thread.start()
        await asyncio.to_thread(gate.await_arrivals)
        assert job.outcome is not None
        waiting = asyncio.create_task(ended(job))
        await asyncio.sleep(0)
        assert not waiting.done()
        gate.open()
        await waiting
        assert told == ["observer"]
        await asyncio.to_thread(join, thread)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("seconds", "error"), [(0.0, DeadlineExceeded), (3600.0, Cancelled), (None, Cancelled)]
)
def test_a_job_whose_caller_is_gone_has_expired_if_its_deadline_has_passed(
    seconds: float | None, error: type[Exception]
) -> None:
    async def run() -> None:
        deadline = None if seconds is None else time.monotonic() + seconds
        job = Job({}, lambda _: None, deadline=deadline)
        waiting = asyncio.create_task(ended(job))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert isinstance(job.token.error, error)

    asyncio.run(run())


def fail(_: Job) -> None:
    raise MemoryError


def test_a_completion_that_cannot_be_delivered_holds_up_no_other(
    loop: Loop, sink: CompletionSink
) -> None:
    delivered: list[Job] = []
    job = Job({}, lambda _: None)
    elsewhere(lambda: sink.put(fail, job))
    elsewhere(lambda: sink.put(delivered.append, job))
    with pytest.raises(MemoryError):
        loop.run()
    loop.run()
    assert delivered == [job]
    assert not loop.wakeups


def test_a_loop_that_could_not_be_woken_is_woken_by_the_next_completion(
    loop: Loop, sink: CompletionSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered: list[int] = []
    job = Job({}, lambda _: None)

    def refuse(_: object) -> None:
        raise MemoryError

    def put_in_vain() -> None:
        with pytest.raises(MemoryError):
            sink.put(lambda _: delivered.append(1), job)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_soon_threadsafe", refuse)
        elsewhere(put_in_vain)
    elsewhere(lambda: sink.put(lambda _: delivered.append(2), job))
    loop.run()
    assert delivered == [1, 2]
