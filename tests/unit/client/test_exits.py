"""What is open when the interpreter exits is closed then."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from headrace.client import exits


class Opened:
    def __init__(self, closes: Callable[[], object] = lambda: None) -> None:
        self._closes = closes
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        self._closes()


@pytest.fixture(autouse=True)
def nothing_else_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "_open", {})


def test_all_are_closed_once_whatever_one_of_them_raises() -> None:
    def fail() -> None:
        raise RuntimeError("it does not close")

    opened = [Opened(fail), Opened(), Opened(fail)]
    for each in (*opened, *opened):
        exits.close_at_exit(each)
    exits._close_all()
    assert [each.closed for each in opened] == [1, 1, 1]


def test_what_a_thread_opens_meanwhile_is_closed_too() -> None:
    late = Opened()
    first = Opened(lambda: exits.close_at_exit(late))
    exits.close_at_exit(first)
    exits._close_all()
    assert (first.closed, late.closed) == (1, 1)


def test_what_has_gone_is_forgotten() -> None:
    exits.close_at_exit(Opened())
    gc.collect()
    assert not exits._open
    exits._close_all()
