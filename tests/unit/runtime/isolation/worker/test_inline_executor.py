"""In a worker a task runs on the thread that brings it: the queue is the server's."""

from __future__ import annotations

import os
import threading

import pytest

from headrace.runtime.errors import Internal
from headrace.runtime.execution.fair_queue import Entry
from headrace.runtime.execution.stream import ExecutionStream, Task
from headrace.runtime.isolation.worker.inline_executor import InlineExecutors
from tests.support.gate import join


class Noted:
    """A task that notes the thread that it ran on."""

    priority = 0

    def __init__(self, error: BaseException | None = None) -> None:
        self.entry: Entry[Task] | None = None
        self.thread: threading.Thread | None = None
        self.failed: BaseException | None = None
        self._error = error

    def run(self, stream: int) -> None:
        self.thread = threading.current_thread()
        if self._error is not None:
            raise self._error

    def dispatch(self, stream: ExecutionStream) -> bool:
        raise AssertionError("a worker's task runs where it is submitted")

    def fail(self, error: BaseException) -> None:
        self.failed = error


def test_a_task_runs_at_once_on_the_calling_thread() -> None:
    executor = InlineExecutors().get("CPU.0", 2)
    before = set(threading.enumerate())
    task = Noted()
    executor.share(1).submit(task)
    assert task.thread is threading.current_thread()
    assert task.entry is None
    assert set(threading.enumerate()) <= before


def test_a_network_runs_its_requests_where_they_are_submitted_however_long_they_take() -> None:
    budget = InlineExecutors().get("CPU.0", 1).inline_budget(safe=False)
    assert budget is not None
    assert budget.allowed
    assert budget.unremarkable > 1e6  # no run is recorded


def test_a_task_that_raises_fails_and_the_thread_lives(caplog: pytest.LogCaptureFixture) -> None:
    task = Noted(SystemExit("a backend wants to leave"))
    InlineExecutors().get("CPU.0", 1).share(1).submit(task)
    assert isinstance(task.failed, Internal)
    assert "a task of CPU.0 raised" in caplog.text


def test_the_number_of_streams_is_what_was_asked_for() -> None:
    executors = InlineExecutors()
    executor = executors.get("CPU.0", 3)
    assert executors.get("CPU.0", 1) is executor
    assert (executor.streams, executor.busy, executor.waiting) == (3, 0, 0)
    executor.resize(5)
    assert executor.streams == 5
    share = executor.share(2)
    share.limit = 4
    assert share.limit == 4
    executors.stop()


def test_bound_threads_keep_to_a_processor_each() -> None:
    executor = InlineExecutors().get("CPU.0", 2, bind=True)
    bound: list[set[int]] = []

    def bring() -> None:
        executor.share(1).submit(Noted())
        bound.append(os.sched_getaffinity(0))

    threads = [threading.Thread(target=bring) for _ in range(2)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert [len(each) for each in bound] == [1, 1]
    if len(os.sched_getaffinity(0)) > 1:
        assert bound[0] != bound[1]
