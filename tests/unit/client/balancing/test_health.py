"""What a client knows of one server's health."""

from __future__ import annotations

import pytest

from headrace.client.balancing.health import Health, ProbeResult
from headrace.client.balancing.options import Balancing

OPTIONS = Balancing(frozen_seconds=1.5, eject_after=3, eject_seconds=10.0)


def heard_at(now: float) -> Health:
    health = Health(OPTIONS)
    health.heard(now)
    return health


def test_a_server_without_requests_is_not_asked() -> None:
    assert not heard_at(0.0).wants_probe(100.0, in_flight=0)


def test_a_server_that_is_silent_about_requests_is_asked_once() -> None:
    health = heard_at(0.0)
    assert not health.wants_probe(0.49, in_flight=1)
    assert health.wants_probe(0.5, in_flight=1)
    assert not health.wants_probe(0.6, in_flight=1)


def test_silence_and_the_answers_time_are_together_what_the_user_chose() -> None:
    health = Health(OPTIONS)
    assert health.quiet_seconds + health.probe_seconds == pytest.approx(1.5)


def test_a_server_that_does_not_answer_is_left_with_what_it_has() -> None:
    health = heard_at(0.0)
    health.wants_probe(0.5, in_flight=1)
    assert health.probed(1.5, ProbeResult.NONE)
    assert not health.up


def test_a_server_that_is_slow_but_answers_is_kept_and_asked_again_later() -> None:
    health = heard_at(0.0)
    health.wants_probe(0.5, in_flight=1)
    assert not health.probed(0.6, ProbeResult.SERVING)
    assert health.up
    assert not health.wants_probe(1.0, in_flight=1)
    assert health.wants_probe(1.1, in_flight=1)


def test_a_reply_while_a_probe_waits_saves_a_busy_server() -> None:
    health = heard_at(0.0)
    health.wants_probe(0.5, in_flight=1)
    health.succeeded(1.4)
    assert not health.probed(1.5, ProbeResult.NONE)
    assert health.up


@pytest.mark.parametrize("answer", [ProbeResult.NOT_SERVING, ProbeResult.REFUSED])
def test_what_a_draining_server_has_is_left_to_it(answer: ProbeResult) -> None:
    health = heard_at(0.0)
    health.wants_probe(0.5, in_flight=1)
    assert not health.probed(0.6, answer)
    assert not health.up


def test_a_server_that_is_down_is_asked_ever_more_seldom_until_it_serves() -> None:
    health = heard_at(0.0)
    health.went_down(0.0)
    now, pauses = 0.0, []
    for _ in range(7):
        before = now
        while not health.wants_probe(now, in_flight=0):
            now += 0.1
        pauses.append(round(now - before, 1))
        assert not health.probed(now, ProbeResult.REFUSED)
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], abs=0.11)
    while not health.wants_probe(now, in_flight=0):
        now += 0.1
    assert not health.probed(now, ProbeResult.SERVING)
    assert health.up


def test_a_server_is_left_out_after_failures_in_a_row_and_comes_back() -> None:
    health = heard_at(0.0)
    for _ in range(2):
        assert not health.failed(1.0, may_eject=True)
    assert health.failed(1.0, may_eject=True)
    assert health.is_ejected(10.9)
    assert not health.is_ejected(11.0)


def test_a_success_between_failures_keeps_a_server() -> None:
    health = heard_at(0.0)
    for _ in range(10):
        assert not health.failed(1.0, may_eject=True)
        assert not health.failed(1.0, may_eject=True)
        health.succeeded(1.0)


def test_each_time_in_a_row_a_server_is_left_out_for_longer_within_a_bound() -> None:
    health = heard_at(0.0)
    now, lengths = 0.0, []
    for _ in range(7):
        while not health.failed(now, may_eject=True):
            pass
        length = 0.0
        while health.is_ejected(now + length):
            length += 1.0
        lengths.append(length)
        now += length
    assert lengths == [10.0, 20.0, 30.0, 40.0, 50.0, 50.0, 50.0]


def test_a_server_that_must_not_be_left_out_is_kept() -> None:
    health = heard_at(0.0)
    assert not any(health.failed(1.0, may_eject=False) for _ in range(10))
    assert not health.is_ejected(1.0)
