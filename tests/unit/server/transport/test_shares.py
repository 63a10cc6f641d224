"""Nobody takes a shared capacity whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.access.identity import ANONYMOUS, CALLER, STRANGER, Identity, Role, holder_of
from headrace.server.transport.shares import Shares


def fill(shares: Shares, *peers: str) -> dict[str, int]:
    """What each of the peers has got when none of them gets any more."""
    got = dict.fromkeys(peers, 0)
    while True:
        lucky = [peer for peer in peers if shares.take(peer)]
        if not lucky:
            return got
        for peer in lucky:
            got[peer] += 1


def test_one_connection_gets_half() -> None:
    shares = Shares(1000)
    assert fill(shares, "ipv4:10.0.0.1:1") == {"ipv4:10.0.0.1:1": 501}
    assert shares.take("ipv4:10.0.0.1:2"), "another connection still gets something"


def test_the_only_connection_of_a_small_server_gets_both_places() -> None:
    assert fill(Shares(2), "ipv4:10.0.0.1:1") == {"ipv4:10.0.0.1:1": 2}
    assert fill(Shares(1), "ipv4:10.0.0.1:1") == {"ipv4:10.0.0.1:1": 1}


def test_greedy_connections_that_come_together_get_the_same_and_leave_as_much() -> None:
    shares = Shares(1100)
    got = fill(shares, *(f"ipv4:10.0.0.{host}:1" for host in range(10)))
    assert all(99 <= each <= 101 for each in got.values()), got
    assert 90 <= shares.left <= 110


def test_greedy_connections_that_come_after_each_other_leave_something() -> None:
    shares = Shares(1000, 1 / 8)
    for host in range(20):
        fill(shares, f"ipv4:10.0.0.{host}:1")
    assert shares.left > 50


def test_very_many_connections_of_one_address_leave_an_eighth_for_other_addresses() -> None:
    shares = Shares(800)
    fill(shares, *(f"ipv4:10.0.0.1:{port}" for port in range(2000)))
    assert shares.left >= 99
    assert shares.take("ipv4:10.0.0.2:1")


def test_an_identity_at_many_addresses_leaves_an_eighth_for_others_at_one_of_them() -> None:
    shares = Shares(800)

    def fill_as(name: str, *peers: str) -> dict[str, int]:
        before = CALLER.set(Identity(name, frozenset(Role)))
        try:
            return fill(shares, *map(holder_of, peers))
        finally:
            CALLER.reset(before)

    fill_as("token:eve", *(f"ipv4:10.0.0.{n % 50}:{n}" for n in range(2000)))
    assert shares.left >= 99
    assert sum(fill_as("token:bob", "ipv4:10.0.0.1:5").values()) > 1


@pytest.mark.parametrize("caller", [ANONYMOUS, STRANGER])
def test_callers_without_an_identity_share_by_address(caller: Identity) -> None:
    before = CALLER.set(caller)
    assert holder_of("ipv4:10.0.0.1:5") == "ipv4:10.0.0.1:5"
    CALLER.reset(before)


def test_an_amount_that_is_not_there_is_refused_whole() -> None:
    shares = Shares(100)
    assert not shares.take("ipv4:10.0.0.1:1", 101)
    assert shares.take("ipv4:10.0.0.1:1", 100)
    assert not shares.take("ipv4:10.0.0.2:1", 1)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 30)), max_size=40))
def test_what_is_given_back_is_there_again(steps: list[tuple[int, int, int]]) -> None:
    shares = Shares(100)
    taken = [
        (peer, amount)
        for host, port, amount in steps
        if shares.take(peer := f"ipv6:[::{host}]:{port}", amount)
    ]
    assert shares.taken == sum(amount for _, amount in taken) <= 100
    for peer, amount in taken:
        shares.give_back(peer, amount)
    assert shares.left == 100
    assert shares.take("ipv6:[::1]:1", 100), "nobody is remembered"


@pytest.mark.parametrize("peer", ["", "unix:", "unix", "ipv4:10.0.0.1:1"])
def test_whatever_a_peer_is_called_it_gives_back_what_it_took(peer: str) -> None:
    """gRPC calls one whose connection has ended by now ""."""
    shares = Shares(100)
    assert shares.take(peer)
    assert shares.take(peer)
    shares.give_back(peer)
    shares.give_back(peer)
    assert shares.taken == 0
    assert fill(shares, peer) == {peer: 51}
