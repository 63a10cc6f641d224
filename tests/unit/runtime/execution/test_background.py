"""Work goes on beside the requests, one piece after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace.runtime.execution import background as module
from headrace.runtime.execution.background import Background
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background("test-background")
    yield made
    made.stop()


def test_they_are_done_in_order(background: Background) -> None:
    done: list[int] = []
    for number in range(3):
        background.start("network", lambda number=number: done.append(number))  # type: ignore[misc]
    background.wait("network")
    assert done == [0, 1, 2]


def test_who_leaves_waits_for_the_one_that_has_begun_and_drops_the_others(
    background: Background,
) -> None:
    began, goes_on, done = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        began.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        done.append("first")

    background.start("leaving", first)
    background.start("leaving", lambda: done.append("second"))
    background.start("staying", lambda: done.append("other"))
    assert began.wait(PATIENCE_SECONDS)
    leaves = threading.Thread(target=background.forget, args=("leaving",))
    leaves.start()
    with background._changed:
        assert background._changed.wait_for(lambda: len(background._waiting) == 1, 30)
    goes_on.set()
    leaves.join(PATIENCE_SECONDS)
    assert "first" in done
    background.wait("staying")
    assert done == ["first", "other"]


def test_one_that_raises_ends_no_other(background: Background) -> None:
    done = threading.Event()
    background.start("one", lambda: 1 / 0)
    background.start("other", done.set)
    assert done.wait(PATIENCE_SECONDS)


def test_the_thread_ends_when_there_is_nothing_to_do(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.001)
    before = set(threading.enumerate())
    for _ in range(2):
        background.start("network", lambda: None)
        background.wait("network")
        for thread in set(threading.enumerate()) - before:
            thread.join(PATIENCE_SECONDS)
        assert set(threading.enumerate()) <= before


def test_work_that_got_no_thread_is_done_with_the_next(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[str] = []
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refuse)
        background.start("network", lambda: done.append("first"))
    background.start("network", lambda: done.append("second"))
    background.wait("network")
    assert done == ["first", "second"]


def test_after_the_stop_nothing_begins(background: Background) -> None:
    background.stop()
    background.start("network", lambda: pytest.fail("it began"))
    background.wait("network")
