"""Which connections are distrusted because they give up their calls at once."""

from __future__ import annotations

from headrace.server.transport.resets import (
    FORGIVEN_SECONDS,
    FREE_RESETS,
    FREE_RESETS_A_SECOND,
    PATIENCE_SECONDS,
    Resets,
    Verdict,
)

A, B = "ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2"


def give_up(resets: Resets, count: int, now: float = 0.0, peer: str = A) -> set[Verdict]:
    return {resets.given_up(peer, now) for _ in range(count)}


def test_a_connection_may_give_up_some_calls() -> None:
    resets = Resets()
    assert give_up(resets, FREE_RESETS) == {Verdict.NOTHING}
    assert not resets.distrusts(A, 0.0)


def test_a_connection_that_gives_up_more_is_distrusted_and_its_calls_wait() -> None:
    resets = Resets()
    give_up(resets, FREE_RESETS)
    assert give_up(resets, 1) == {Verdict.WAIT}
    assert resets.distrusts(A, 0.0)
    assert not resets.distrusts(B, 0.0)


def test_answered_calls_make_up_for_those_that_were_given_up() -> None:
    resets = Resets()
    for _ in range(10 * FREE_RESETS):
        assert resets.given_up(A, 0.0) is Verdict.NOTHING
        resets.answered(A)
    for _ in range(10 * FREE_RESETS):
        resets.answered(A)  # cannot be saved up
    assert give_up(resets, FREE_RESETS + 1) == {Verdict.NOTHING, Verdict.WAIT}


def test_a_connection_may_give_up_some_calls_a_second_for_ever() -> None:
    resets = Resets()
    for second in range(100):
        assert give_up(resets, FREE_RESETS_A_SECOND, float(second)) == {Verdict.NOTHING}


def test_a_distrusted_connection_that_stops_is_trusted_again() -> None:
    resets = Resets()
    give_up(resets, 2 * FREE_RESETS)
    assert resets.distrusts(A, FORGIVEN_SECONDS - 0.1)
    assert not resets.distrusts(A, FORGIVEN_SECONDS)
    assert give_up(resets, FREE_RESETS, FORGIVEN_SECONDS) == {Verdict.NOTHING}


def test_a_distrusted_connection_whose_calls_are_answered_is_trusted_again() -> None:
    resets = Resets()
    give_up(resets, FREE_RESETS + 3)
    for _ in range(2):
        resets.answered(A)
    assert resets.distrusts(A, 0.0)
    resets.answered(A)
    assert not resets.distrusts(A, 0.0)


def test_a_connection_that_goes_on_is_ended_once() -> None:
    resets = Resets()
    give_up(resets, FREE_RESETS + 1)
    for second in range(1, int(PATIENCE_SECONDS)):
        assert give_up(resets, 1, float(second)) == {Verdict.WAIT}
    assert give_up(resets, 1, PATIENCE_SECONDS) == {Verdict.END}
    assert give_up(resets, 9, PATIENCE_SECONDS) == {Verdict.NOTHING}


def test_a_connection_that_stopped_meanwhile_has_all_patience_again() -> None:
    resets = Resets()
    give_up(resets, FREE_RESETS + 1)
    assert give_up(resets, FREE_RESETS + 1, PATIENCE_SECONDS) == {Verdict.NOTHING, Verdict.WAIT}


def test_connections_without_a_debt_are_forgotten() -> None:
    resets = Resets()
    for number in range(10_000):
        resets.given_up(f"ipv4:10.0.0.1:{number}", float(number))
    assert len(resets) < 100


def test_connections_with_a_debt_are_not_forgotten() -> None:
    resets = Resets()
    give_up(resets, FREE_RESETS + 1)
    for number in range(1000):
        resets.given_up(f"ipv4:10.0.0.2:{number}", 0.01)
    assert resets.distrusts(A, 0.01)
