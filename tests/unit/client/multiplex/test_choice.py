"""When requests go over the shared stream."""

from __future__ import annotations

from headrace.client.multiplex.choice import (
    GOOD_REQUESTS,
    GOOD_SECONDS,
    MAX_PAUSE_SECONDS,
    OPEN_AFTER,
    PATIENCE_SECONDS,
    Choice,
    Step,
)


def opened(now: float = 0.0) -> Choice:
    choice = Choice(open_after=1)
    assert choice.step(now) is Step.OPEN
    return choice


def answered(now: float = 0.0) -> Choice:
    choice = opened(now)
    choice.answered()
    assert choice.step(now) is Step.STREAM
    return choice


def test_a_program_of_few_requests_opens_no_stream() -> None:
    choice = Choice()
    steps = [choice.step(0.0) for _ in range(OPEN_AFTER)]
    assert steps == [Step.UNARY] * (OPEN_AFTER - 1) + [Step.OPEN]


def test_requests_do_without_a_stream_until_it_has_answered() -> None:
    choice = opened()
    assert choice.step(0.0) is Step.UNARY
    choice.answered()
    assert choice.step(0.0) is Step.STREAM


def test_a_stream_that_never_answers_is_given_up_and_tried_again_later() -> None:
    choice = opened()
    assert choice.step(PATIENCE_SECONDS - 0.1) is Step.UNARY
    assert choice.step(PATIENCE_SECONDS) is Step.GIVE_UP
    assert choice.step(PATIENCE_SECONDS + 0.9) is Step.UNARY
    assert choice.step(PATIENCE_SECONDS + 1.0) is Step.OPEN


def test_the_pause_doubles_with_each_failure_up_to_a_bound() -> None:
    choice, now, pauses = opened(), 0.0, []
    for _ in range(12):
        choice.ended(now)
        start = now
        while choice.step(now) is not Step.OPEN:
            now += 0.5
        pauses.append(now - start)
    assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert pauses[-1] == MAX_PAUSE_SECONDS


def test_a_stream_that_lasted_is_no_failure() -> None:
    choice = answered()
    choice.ended(1.0)
    assert choice.step(2.0) is Step.OPEN
    choice.answered()
    choice.ended(2.0 + GOOD_SECONDS)
    assert choice.step(2.9 + GOOD_SECONDS) is Step.UNARY
    assert choice.step(3.0 + GOOD_SECONDS) is Step.OPEN


def test_a_late_result_puts_the_stream_into_doubt_once() -> None:
    choice = answered()
    assert choice.doubted(5.0)
    assert not choice.doubted(5.0)
    assert choice.step(5.0) is Step.UNARY
    choice.answered()
    assert choice.step(5.0) is Step.STREAM


def test_another_credential_opens_another_stream_at_once() -> None:
    choice = answered()
    choice.replaced(1.0, GOOD_REQUESTS)
    assert choice.step(1.0) is Step.OPEN


def test_a_credential_for_every_call_does_without_streams() -> None:
    choice = answered()
    choice.replaced(1.0, 3)
    assert choice.step(1.0) is Step.UNARY


def test_an_end_that_is_told_twice_counts_once() -> None:
    choice = answered()
    choice.ended(0.0)
    choice.ended(0.0)
    assert choice.step(1.0) is Step.OPEN
