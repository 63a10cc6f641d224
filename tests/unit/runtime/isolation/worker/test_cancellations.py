"""A cancellation finds its request, whichever comes first."""

from __future__ import annotations

from headrace.runtime.errors import Cancelled
from headrace.runtime.isolation.worker.cancellations import Cancellations


def test_what_runs_is_cancelled() -> None:
    table = Cancellations()
    one, other = table.begin(1), table.begin(2)
    table.cancel(1)
    assert isinstance(one.error, Cancelled)
    assert other.error is None


def test_a_cancellation_that_comes_first_waits_for_its_request() -> None:
    table = Cancellations()
    table.cancel(7)
    assert table.begin(6).error is None
    assert table.begin(7).error is not None


def test_a_cancellation_that_comes_late_does_nothing() -> None:
    table = Cancellations()
    token = table.begin(1)
    table.end(1)
    table.cancel(1)
    assert token.error is None
    table.end(1)


def test_late_cancellations_are_forgotten_in_the_end() -> None:
    table = Cancellations()
    for number in range(5000):
        table.cancel(number)
    assert table.begin(0).error is None
    assert table.begin(4999).error is not None
