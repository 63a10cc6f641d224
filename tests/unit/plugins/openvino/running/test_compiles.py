"""Compiles run beside the requests, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace.plugins.openvino.running import compiles as module
from headrace.plugins.openvino.running.compiles import Compiles
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def compiles() -> Iterator[Compiles]:
    made = Compiles()
    yield made
    made.stop()


def test_they_are_done_in_order(compiles: Compiles) -> None:
    done: list[int] = []
    for number in range(3):
        compiles.start("network", lambda number=number: done.append(number))  # type: ignore[misc]
    compiles.wait("network")
    assert done == [0, 1, 2]


def test_who_leaves_waits_for_the_one_that_has_begun_and_drops_the_others(
    compiles: Compiles,
) -> None:
    began, goes_on, done = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        began.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        done.append("first")

    compiles.start("leaving", first)
    compiles.start("leaving", lambda: done.append("second"))
    compiles.start("staying", lambda: done.append("other"))
    assert began.wait(PATIENCE_SECONDS)
    leaves = threading.Thread(target=compiles.forget, args=("leaving",))
    leaves.start()
    with compiles._changed:
        assert compiles._changed.wait_for(lambda: len(compiles._waiting) == 1, 30)
    goes_on.set()
    leaves.join(PATIENCE_SECONDS)
    assert "first" in done
    compiles.wait("staying")
    assert done == ["first", "other"]


def test_one_that_raises_ends_no_other(compiles: Compiles) -> None:
    done = threading.Event()
    compiles.start("one", lambda: 1 / 0)
    compiles.start("other", done.set)
    assert done.wait(PATIENCE_SECONDS)


def test_the_thread_ends_when_there_is_nothing_to_do(
    compiles: Compiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.001)
    before = set(threading.enumerate())
    for _ in range(2):
        compiles.start("network", lambda: None)
        compiles.wait("network")
        for thread in set(threading.enumerate()) - before:
            thread.join(PATIENCE_SECONDS)
        assert set(threading.enumerate()) <= before


def test_after_the_stop_nothing_begins(compiles: Compiles) -> None:
    compiles.stop()
    compiles.start("network", lambda: pytest.fail("it began"))
    compiles.wait("network")
