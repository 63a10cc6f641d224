"""The results of one sequence come in the order of its requests, whichever is known first."""

from __future__ import annotations

import random

import pytest

from headrace.server.services.streams.sequence_order import SequenceOrder


def test_a_result_waits_for_those_of_the_requests_before_it() -> None:
    order, reported = SequenceOrder(), list[str]()
    for request in ("first", "second", "third"):
        order.begin(request, "a")
    order.begin("alone", "b")
    order.end("second", lambda: reported.append("second"))
    order.end("alone", lambda: reported.append("alone"))
    assert reported == ["alone"]
    order.end("first", lambda: reported.append("first"))
    assert reported == ["alone", "first", "second"]
    assert "second" not in order
    assert "third" in order


def test_a_request_that_failed_holds_up_none() -> None:
    order, reported = SequenceOrder(), list[str]()
    order.begin("first", "a")
    order.begin("second", "a")
    order.end("second", lambda: reported.append("second"))
    order.leave("first")
    assert reported == ["second"]
    assert "first" not in order


def test_a_request_that_begins_twice_has_one_place() -> None:
    order, reported = SequenceOrder(), list[str]()
    order.begin("first", "a")
    order.begin("second", "a")
    order.begin("first", "a")
    order.end("first", lambda: reported.append("first"))
    assert reported == ["first"]


def test_a_report_may_begin_and_end_the_next_request() -> None:
    order, reported = SequenceOrder(), list[str]()

    def next_one() -> None:
        reported.append("first")
        order.begin("second", "a")
        order.end("second", lambda: reported.append("second"))

    order.begin("first", "a")
    order.end("first", next_one)
    assert reported == ["first", "second"]
    assert "second" not in order


@pytest.mark.parametrize("seed", range(20))
def test_every_request_is_reported_once_and_in_order(seed: int) -> None:
    choose = random.Random(seed)
    order, reported = SequenceOrder(), list[tuple[str, int]]()
    requests = [(choose.choice("abc"), number) for number in range(50)]
    for request in requests:
        order.begin(request, request[0])
    failed = set(choose.sample(requests, 10))
    for request in choose.sample(requests, 50):
        if request in failed:
            order.leave(request)
        else:
            order.end(request, lambda request=request: reported.append(request))  # type: ignore[misc]
    assert sorted(reported) == sorted({*requests} - failed)
    for sequence in "abc":
        numbers = [number for name, number in reported if name == sequence]
        assert numbers == sorted(numbers)
