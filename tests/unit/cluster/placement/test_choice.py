"""Which replicas get a network, and which keep it."""

from __future__ import annotations

from collections.abc import Collection

from headrace.cluster import networks
from headrace.cluster.desired import Value, VersionedValue
from headrace.cluster.placement.choice import Placement, holders_of, key_of

NOBODY: set[str] = set()


def asking(replicas: int, size: int = 0) -> Value:
    stamp = {"alone": True, "asked": replicas, "size": size}
    return networks.loaded(None, "1", "{}", "digest", "s", **stamp)  # type: ignore[arg-type]


class Cluster:
    """Places that take over what they choose, as the keeper does."""

    def __init__(self) -> None:
        self.places = Placement({})

    def load(self, name: str, replicas: int, live: Collection[str], size: int = 0) -> list[str]:
        self.places.note(networks.key_of(name), asking(replicas, size))
        self.places.note(key_of(name), self.places.chosen(name, replicas, live, NOBODY))
        return sorted(self.places.of(name))

    def move(self, staying: Collection[str], leaving: Collection[str] = NOBODY) -> list[str]:
        moved = []
        for key, value in self.places.moves(staying, leaving):
            self.places.note(key, value)
            moved.append(key)
        return moved


def test_networks_go_where_the_fewest_bytes_are() -> None:
    cluster = Cluster()
    assert cluster.load("large", 1, "abc", size=100 << 20) == ["a"]
    assert cluster.load("small", 2, "abc") == ["b", "c"]
    assert cluster.load("other", 2, "abc") == ["b", "c"]
    cluster.places.note(key_of("large"), None)
    cluster.places.note(networks.key_of("large"), None)
    assert cluster.load("last", 1, "abc") == ["a"]


def test_many_small_networks_are_spread_evenly() -> None:
    cluster = Cluster()
    for number in range(300):
        cluster.load(f"n{number}", 2, "abcd")
    assert {each: len(cluster.places.placed_on(each)) for each in "abcd"} == dict.fromkeys(
        "abcd", 150
    )


def test_a_network_stays_where_it_is_and_only_lost_replicas_are_replaced() -> None:
    cluster = Cluster()
    assert cluster.load("n", 2, "ab") == ["a", "b"]
    assert cluster.move("abc") == []
    assert cluster.move("bc") == [key_of("n")]
    assert cluster.places.of("n") == ("b", "c")
    assert cluster.load("n", 2, "abcd") == ["b", "c"]


def test_a_replica_that_leaves_keeps_the_network_until_it_is_gone() -> None:
    cluster = Cluster()
    cluster.load("n", 1, "a")
    cluster.move("b", "a")
    assert cluster.places.of("n") == ("b", "a")
    assert cluster.move("b", "a") == []
    cluster.move("b")
    assert cluster.places.of("n") == ("b",)


def test_fewer_replicas_than_asked_for_are_filled_up_later() -> None:
    cluster = Cluster()
    assert cluster.load("n", 3, "a") == ["a"]
    assert cluster.move("a") == []
    cluster.move("ab")
    assert cluster.places.of("n") == ("a", "b")
    assert cluster.load("n", 1, "ab") == ["a"]


def test_the_places_are_read_from_the_desired_state() -> None:
    entries = {
        networks.key_of("n"): VersionedValue(2, asking(1)),
        key_of("n"): VersionedValue(1, {"holders": ["b"]}),
        networks.key_of("everywhere"): VersionedValue(3, asking(0)),
        "device/CPU": VersionedValue(4, {"config": {}}),
    }
    places = Placement(entries)
    assert places.of("n") == ("b",)
    assert places.of("everywhere") == ()
    assert holders_of(places.chosen("x", 1, "ab", NOBODY)) == ("a",)  # b has a network already
    assert list(places.moves("b", NOBODY)) == []
