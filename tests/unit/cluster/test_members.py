"""Who is live, who is behind, and which replicas hold a network."""

from __future__ import annotations

from headrace.cluster.members import Members, Problem, ReplicaAddress, ReplicaStatus, roster

A, B = ReplicaAddress("a", "h:1", "n1"), ReplicaAddress("b", "h:2", "n2")


def ready(revision: int, *pending: str, failed: dict[str, str] | None = None) -> ReplicaStatus:
    return ReplicaStatus(True, revision, frozenset(pending), failed or {})


def test_a_replica_that_nobody_hears_of_is_lost_after_a_while() -> None:
    members = Members(lost_seconds=10)
    assert members.tell(A, ReplicaStatus(), 0.0)
    assert members.tell(B, ReplicaStatus(), 5.0)
    assert members.lose(10.0) == []
    assert members.lose(10.1) == [A]
    assert members.live() == (B,)
    assert not members.tell(B, ReplicaStatus(), 11.0)
    assert members.tell(A, ReplicaStatus(), 12.0)


def test_a_replica_that_leaves_is_gone_at_once() -> None:
    members = Members()
    members.tell(A, ready(0), 0.0)
    assert members.leave("a")
    assert not members.leave("a")
    assert members.behind("k", 1) == []


def test_a_standing_that_was_overtaken_does_not_count() -> None:
    members = Members()
    members.tell(A, ReplicaStatus(True, 5, frozenset(), {}, 2), 0.0)
    members.tell(A, ReplicaStatus(True, 5, frozenset({"k"}), {}, 1), 12.0)
    assert members.behind("k", 5) == []
    assert members.lose(20.0) == []  # but the replica lives


def test_a_replica_is_behind_until_it_has_heard_and_finished() -> None:
    members = Members()
    members.tell(A, ready(4), 0.0)
    assert members.behind("k", 5) == ["a"]
    members.tell(A, ready(5, "k"), 0.0)
    assert members.behind("k", 5) == ["a"]
    assert members.behind("other", 5) == []
    members.tell(A, ready(5), 0.0)
    assert members.behind("k", 5) == []


def test_nobody_waits_for_a_replica_that_is_still_starting() -> None:
    members = Members()
    members.tell(A, ReplicaStatus(False, 1, frozenset({"k"})), 0.0)
    assert members.behind("k", 5) == []


def test_the_problems_of_a_key_name_the_replica_and_the_reason() -> None:
    members = Members()
    members.tell(A, ready(5, failed={"k": "no such device"}), 0.0)
    members.tell(B, ready(5), 0.0)
    assert members.problems("k") == [Problem(A, "no such device")]
    assert str(members.problems("k")[0]) == "a on n1: no such device"


def test_a_roster_tells_sets_of_replicas_apart() -> None:
    assert roster([A, B]) == roster([B, A])
    assert len({roster([]), roster([A]), roster([A, B]), roster([A._replace(address="h:9")])}) == 4
