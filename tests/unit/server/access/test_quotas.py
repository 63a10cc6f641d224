"""What one client may ask for: requests a second, and requests at a time."""

from __future__ import annotations

import pytest

from headrace.server.access import quotas
from headrace.server.access.identity import ANONYMOUS, STRANGER, Identity, Role
from headrace.server.access.quotas import QuotaExceeded, Quotas, client_name

CI = Identity("token:ci", frozenset({Role.INFER}))
WEB = Identity("token:web", frozenset({Role.INFER}))
HERE = "ipv4:127.0.0.1:5000"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def entered(limits: Quotas, caller: Identity = CI, peer: str = HERE, tries: int = 100) -> int:
    """How many requests of a client get in, one right after the other."""
    for count in range(tries):
        try:
            limits.enter(caller, peer)
        except QuotaExceeded:
            return count
    return tries


def test_a_client_gets_its_rate_and_no_more(clock: Clock) -> None:
    limits = Quotas(5, 0, clock)
    assert entered(limits) == 5
    clock.now += 0.4
    assert entered(limits) == 2
    clock.now += 60
    assert entered(limits) == 5, "being idle saves up one second's requests at most"


def test_a_refused_request_says_when_the_next_one_gets_in(clock: Clock) -> None:
    limits = Quotas(4, 0, clock)
    entered(limits)
    with pytest.raises(QuotaExceeded, match="more than 4 requests a second") as refused:
        limits.enter(CI, HERE)
    delay = refused.value.retry_delay_seconds
    assert delay == pytest.approx(0.25)
    clock.now += 0.9 * 0.25
    assert entered(limits) == 0
    clock.now += 0.1 * 0.25
    assert entered(limits) == 1


def test_a_request_in_flight_counts_until_it_leaves(clock: Clock) -> None:
    limits = Quotas(0, 3, clock)
    assert entered(limits) == 3
    limits.leave(CI, HERE)
    assert entered(limits) == 1
    with pytest.raises(QuotaExceeded, match="3 requests in flight") as refused:
        limits.enter(CI, HERE)
    assert refused.value.retry_delay_seconds


def test_a_request_that_is_refused_for_its_rate_is_not_in_flight(clock: Clock) -> None:
    limits = Quotas(1, 2, clock)
    assert entered(limits) == 1
    clock.now += 1
    assert entered(limits) == 1


def test_what_does_not_stay_counts_for_the_rate_alone(clock: Clock) -> None:
    limits = Quotas(3, 1, clock)
    limits.enter(CI, HERE)
    limits.enter(CI, HERE, stays=False)
    limits.enter(CI, HERE, stays=False)
    with pytest.raises(QuotaExceeded, match="a second"):
        limits.enter(CI, HERE, stays=False)


def test_clients_do_not_count_for_each_other(clock: Clock) -> None:
    limits = Quotas(2, 0, clock)
    assert entered(limits) == 2
    assert entered(limits, WEB) == 2


def test_an_identity_counts_the_same_from_all_its_addresses(clock: Clock) -> None:
    limits = Quotas(2, 0, clock)
    assert entered(limits, CI, "ipv4:10.0.0.1:1") == 2
    assert entered(limits, CI, "ipv4:10.0.0.2:1") == 0


@pytest.mark.parametrize("caller", [ANONYMOUS, STRANGER], ids=lambda each: each.name)
def test_callers_without_an_identity_count_by_address(caller: Identity, clock: Clock) -> None:
    limits = Quotas(2, 0, clock)
    assert entered(limits, caller, "ipv4:10.0.0.1:1") == 2
    assert entered(limits, caller, "ipv4:10.0.0.1:2") == 0, "another port is the same client"
    assert entered(limits, caller, "ipv4:10.0.0.2:1") == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ipv6:%5B2001:db8::1%5D:5", "ipv6:%5B2001:db8::ffff:1%5D:6", True),
        ("ipv6:[2001:db8::1]:5", "ipv6:%5B2001:db8::1%5D:6", True),
        ("ipv6:[2001:db8::1]:5", "ipv6:[2001:db8:0:1::1]:5", False),
        ("ipv6:%5Bfe80::1%25eth0%5D:5", "ipv6:%5Bfe80::2%25eth0%5D:5", True),
        ("unix:", "unix:", True),
        ("", "ipv4:1.2.3.4:5", False),
    ],
)
def test_an_ipv6_network_of_one_customer_counts_as_one_address(
    one: str, other: str, same: bool
) -> None:
    assert (client_name(ANONYMOUS, one) == client_name(ANONYMOUS, other)) is same


def test_an_identity_that_looks_like_an_address_is_another_client() -> None:
    named = Identity("token:127.0.0.1", frozenset({Role.INFER}))
    assert client_name(named, HERE) != client_name(ANONYMOUS, HERE)


def test_strangers_do_not_fill_the_memory_and_busy_clients_are_not_forgotten(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MAX_CLIENTS", 10)
    limits = Quotas(5, 2, clock)
    limits.enter(CI, HERE)
    for number in range(100):
        peer = f"ipv4:10.0.0.{number}:1"
        limits.enter(ANONYMOUS, peer)
        limits.leave(ANONYMOUS, peer)
    assert len(limits) <= 10
    assert entered(limits, tries=9) == 1, "the request in flight was forgotten"
