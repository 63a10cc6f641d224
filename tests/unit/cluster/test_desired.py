"""Changes of the desired state get revisions, and none overwrites another unseen."""

from __future__ import annotations

import pytest

from headrace.cluster import desired as module
from headrace.cluster.desired import NOTHING, DesiredState, VersionedValue


def test_each_change_gets_the_next_revision() -> None:
    desired = DesiredState({}, 10)
    assert desired.change("a", {"x": 1}) == 11
    assert desired.change("b", {"x": 2}) == 12
    assert desired.entries == {"a": VersionedValue(11, {"x": 1}), "b": VersionedValue(12, {"x": 2})}


def test_a_new_revision_is_above_those_of_the_entries_and_of_the_past() -> None:
    assert DesiredState({"a": VersionedValue(7, {})}, 3).change("b", {}) == 8
    assert DesiredState({"a": VersionedValue(7, {})}, 30).change("b", {}) == 31


def test_a_key_has_its_newest_revision_or_none() -> None:
    desired = DesiredState({})
    assert desired.newest("a") == NOTHING
    desired.change("a", {"x": 1})
    assert desired.newest("a") == desired.change("b", {}) - 1
    desired.change("a", None)
    assert desired.newest("a") == NOTHING


def test_a_replica_gets_what_changed_since_its_revision() -> None:
    desired = DesiredState({"old": VersionedValue(1, {})}, 1)
    begin = desired.revision
    desired.change("a", {"x": 1})
    middle = desired.change("b", {})
    desired.change("a", {"x": 2})
    desired.change("b", None)
    changes = desired.since(begin)
    assert (changes.revision, changes.whole) == (5, False)
    assert changes.entries == {"a": VersionedValue(4, {"x": 2}), "b": VersionedValue(5, None)}
    assert set(desired.since(middle).entries) == {"a", "b"}
    assert desired.since(5).entries == {}


@pytest.mark.parametrize("revision", [0, 99])
def test_a_replica_that_the_log_does_not_reach_gets_the_whole_state(
    revision: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_LENGTH", 2)
    desired = DesiredState({"old": VersionedValue(3, {"x": 0})}, 5)
    for _ in range(3):
        desired.change("a", {})
    changes = desired.since(revision)
    assert changes.whole
    assert changes.entries == {"old": VersionedValue(3, {"x": 0}), "a": VersionedValue(8, {})}


def test_the_log_forgets_the_oldest_change_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_LENGTH", 2)
    desired = DesiredState({})
    first = desired.change("a", {})
    desired.change("b", {})
    desired.change("c", {})
    assert not desired.since(first).whole
    assert set(desired.since(first).entries) == {"b", "c"}
    assert desired.since(first - 1).whole
