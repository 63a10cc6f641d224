"""Executors by name: one for each device id, shared, and none after the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace.runtime.errors import Unavailable
from headrace.runtime.execution.executor_manager import ExecutorManager
from tests.support.gate import run_together
from tests.support.interleaving import frequent_switches
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def manager() -> Iterator[ExecutorManager]:
    manager = ExecutorManager()
    yield manager
    manager.stop(PATIENCE_SECONDS)


def test_a_name_stands_for_one_executor(manager: ExecutorManager) -> None:
    executor = manager.get("CPU.0", 2)
    assert manager.get("CPU.0", 5) is executor
    assert executor.streams == 2
    assert manager.get("CPU.1", 1) is not executor


def test_find_creates_none(manager: ExecutorManager) -> None:
    assert manager.find("CPU") is None
    assert manager.find("CPU") is None
    executor = manager.get("CPU", 1)
    assert manager.find("CPU") is executor


def test_whoever_wants_hears_when_a_number_of_streams_changes(manager: ExecutorManager) -> None:
    heard: list[int] = []
    executor = manager.get("CPU", 1)
    unsubscribe = manager.subscribe(lambda: heard.append(executor.streams))
    manager.resize("CPU", 3)
    manager.resize("CPU", 3)
    manager.resize("GPU", 2)
    assert heard == [3]
    unsubscribe()
    manager.resize("CPU", 1)
    assert heard == [3]


def test_threads_that_ask_at_once_get_the_same(manager: ExecutorManager) -> None:
    with frequent_switches():
        got: list[object] = []
        run_together(*[lambda: got.append(manager.get("CPU", 1))] * 8)
    assert len(set(map(id, got))) == 1


def test_stop_ends_every_thread_and_no_executor_comes_after() -> None:
    manager = ExecutorManager()
    manager.get("CPU", 2)
    manager.get("GPU", 2)
    manager.stop(PATIENCE_SECONDS)
    assert manager.find("CPU") is None
    with pytest.raises(Unavailable, match="CPU is shutting down"):
        manager.get("CPU", 2)
    assert not [each for each in threading.enumerate() if "-stream-" in each.name]
