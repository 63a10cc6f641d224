"""What a replica knows of networks that only some replicas have."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from headrace.cluster.members import ReplicaAddress
from headrace.cluster.placement.directory import Directory

MEMBERS = [ReplicaAddress(name, f"{name}:1") for name in ("a", "b", "c", "me")]


class Here:
    """The networks of this replica."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.known: set[str] = set()

    def serving(self, name: str) -> bool:
        return name in self.ready

    def has(self, name: str) -> bool:
        return name in self.known | self.ready


@pytest.fixture
def here() -> Here:
    return Here()


@pytest.fixture
def directory(here: Here) -> Directory:
    found = Directory("me")
    found.here = cast("Any", here)
    found.meet(MEMBERS)
    return found


def test_without_such_networks_nothing_is_passed_on(directory: Directory) -> None:
    assert not directory
    assert directory.find(["n"]) == ""
    assert directory.is_for("n")
    directory.place("n", {"holders": ["a"]})
    assert directory
    directory.place("n", None)
    assert not directory


def test_a_call_is_passed_on_until_the_network_serves_here(
    directory: Directory, here: Here
) -> None:
    directory.place("n", {"holders": ["a", "me"]})
    assert directory.is_for("n")
    assert directory.find(["n"]) == "n"
    assert directory.addresses("n") == ["a:1"]
    here.ready.add("n")
    assert directory.find(["n"]) == ""
    assert directory.elsewhere() == []


def test_a_callers_own_network_hides_the_shared_one_wherever_it_is(
    directory: Directory, here: Here
) -> None:
    here.ready.add("n")
    directory.place("n@tenant", {"holders": ["a"]})
    assert directory.find(["n@tenant", "n"]) == "n@tenant"
    here.known.add("n@other")
    directory.place("n", {"holders": ["b"]})
    here.ready.clear()
    assert directory.find(["n@other", "n"]) == ""  # it is being loaded here


def test_what_is_not_passed_on_learns_where_the_network_is(
    directory: Directory, here: Here
) -> None:
    assert directory.away(["n"]) == ()
    directory.place("n", {"holders": ["a", "me"]})
    assert directory.away(["n@owner", "n"]) == ("a",)
    here.known.add("n@owner")
    assert directory.away(["n@owner", "n"]) == (), "a network of all replicas hides it"
    here.ready.add("n")
    assert directory.away(["n"]) == ()


def test_calls_take_turns_among_the_live_replicas(directory: Directory) -> None:
    directory.place("n", {"holders": ["a", "b", "gone"]})
    firsts = Counter(directory.addresses("n")[0] for _ in range(10))
    assert firsts == {"a:1": 5, "b:1": 5}
    assert directory.meet([ReplicaAddress("b", "b:1"), ReplicaAddress("me")]) == ["n"]
    assert directory.addresses("n") == ["b:1"]
    assert (
        directory.meet([ReplicaAddress("b", "b:1"), ReplicaAddress("me"), ReplicaAddress("x")])
        == []
    )


def test_a_sequence_has_one_replica_whoever_asks(here: Here) -> None:
    holders = ("a", "b", "c")
    chosen: dict[str, set[str]] = {}
    for own in ("a", "b", "c", "me"):
        directory = Directory(own)
        directory.here = cast("Any", here)
        directory.meet(MEMBERS)
        directory.place("n", {"holders": holders})
        here.ready = {"n"} if own in holders else set()
        for number in range(30):
            sequence = f"s{number}"
            passed = directory.find(["n"], sequence)
            first = directory.addresses("n", sequence)[0] if passed else f"{own}:1"
            chosen.setdefault(sequence, set()).add(first)
    assert all(len(each) == 1 for each in chosen.values())
    assert set.union(*chosen.values()) == {"a:1", "b:1", "c:1"}


def test_a_lost_replica_moves_only_its_own_sequences(directory: Directory) -> None:
    directory.place("n", {"holders": ["a", "b", "c"]})
    before = {f"s{k}": directory.addresses("n", f"s{k}")[0] for k in range(30)}
    directory.meet([each for each in MEMBERS if each.name != "a"])
    for sequence, address in before.items():
        if address != "a:1":
            assert directory.addresses("n", sequence)[0] == address
