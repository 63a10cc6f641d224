"""The keeper: changes that are in the store first, and replicas that it waits for."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from headrace.cluster import keeper as module
from headrace.cluster import networks
from headrace.cluster.desired import Value, VersionedValue
from headrace.cluster.keeper import Keeper
from headrace.cluster.keeping import Update
from headrace.cluster.members import Problem, ReplicaAddress, ReplicaStatus
from headrace.cluster.placement import choice
from headrace.cluster.shared.archive import UNUSED_SECONDS, Archive
from headrace.runtime.errors import Unavailable
from tests.support.manual_clock import ManualClock
from tests.support.patience import PATIENCE_SECONDS

A, B = ReplicaAddress("a", "h:1", "n1"), ReplicaAddress("b", "h:2", "n2")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def ready(revision: int, *pending: str, failed: dict[str, str] | None = None) -> ReplicaStatus:
    return ReplicaStatus(True, revision, frozenset(pending), failed or {})


def test_a_change_outlives_the_keeper(store: str) -> None:
    async def run() -> None:
        first = Keeper(store)
        made = await first.commit("network/n", {"versions": {}}, 0)
        gone = await first.commit("network/gone", {"versions": {}}, 0)
        await first.commit("network/gone", None, gone.revision)
        again = Keeper(store)
        update = await again.follow(A, ReplicaStatus(), "")
        assert update.changes.whole
        assert dict(update.changes.entries) == {"network/n": (made.revision, {"versions": {}})}
        assert await again.key() == await first.key()
        later = await again.commit("network/gone", {"versions": {}}, 0)
        assert later.revision > gone.revision + 1

    asyncio.run(run())


def test_a_change_that_came_too_late_learns_what_is_there(store: str) -> None:
    async def run() -> None:
        keeper = Keeper(store)
        first = await keeper.commit("k", {"x": 1}, 0)
        late = await keeper.commit("k", {"x": 2}, 0)
        assert late.newest == (first.revision, {"x": 1})
        assert (await keeper.commit("k", {"x": 2}, first.revision)).newest is None

    asyncio.run(run())


def test_a_change_that_is_sent_again_is_made_once(store: str) -> None:
    async def run() -> None:
        keeper = Keeper(store)
        first = await keeper.commit("k", {"x": 1}, 0)
        assert await keeper.commit("k", {"x": 1}, 0) == first
        await keeper.commit("k", None, first.revision)
        assert (await keeper.commit("k", None, first.revision)).newest is None

    asyncio.run(run())


def test_a_change_that_cannot_be_written_is_not_made(store: str, tmp_path: Path) -> None:
    async def run() -> None:
        keeper = Keeper(store)
        made = await keeper.commit("k", {"x": 1}, 0)
        (folder := tmp_path / "store" / "desired").rename(tmp_path / "away")
        folder.write_text("in the way")
        with pytest.raises(Unavailable):
            await keeper.commit("k", {"x": 2}, made.revision)
        folder.unlink()
        (tmp_path / "away").rename(folder)
        assert (await keeper.commit("k", {"x": 3}, made.revision)).newest is None

    asyncio.run(run())


def test_a_replica_hears_of_a_change_while_it_waits(store: str) -> None:
    async def run() -> None:
        keeper = Keeper(store)
        begin = await keeper.follow(A, ReplicaStatus(), "")
        told = ready(begin.changes.revision)
        waiting = asyncio.create_task(keeper.follow(A, told, begin.roster))
        made = await keeper.commit("k", {"x": 1}, 0)
        update = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        assert dict(update.changes.entries) == {"k": (made.revision, {"x": 1})}
        assert not update.changes.whole

    asyncio.run(run())


def test_a_replica_hears_of_another_that_joins(store: str) -> None:
    async def run() -> None:
        keeper = Keeper(store)
        begin = await keeper.follow(A, ReplicaStatus(), "")
        told = ready(begin.changes.revision)
        waiting = asyncio.create_task(keeper.follow(A, told, begin.roster))
        await keeper.report(B, ready(0))
        update = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        assert update.members == (A, B)

    asyncio.run(run())


def test_a_change_waits_for_every_replica_and_tells_who_failed(store: str) -> None:
    async def run() -> None:
        keeper = Keeper(store)
        made = await keeper.commit("k", {"x": 1}, 0)
        await keeper.report(A, ready(made.revision))
        await keeper.report(B, ready(made.revision, "k"))
        settled = asyncio.create_task(keeper.settle("k", made.revision))
        await keeper.report(A, ready(made.revision))
        assert not settled.done()
        await keeper.report(B, ready(made.revision, failed={"k": "no room"}))
        problems = await asyncio.wait_for(settled, PATIENCE_SECONDS)
        assert problems == [Problem(B, "no room")]

    asyncio.run(run())


def test_a_change_does_not_wait_for_a_replica_that_is_lost(store: str, clock: ManualClock) -> None:
    async def run() -> None:
        keeper = Keeper(store, lost_seconds=10, clock=clock)
        made = await keeper.commit("k", {"x": 1}, 0)
        await keeper.report(A, ready(0))
        settled = asyncio.create_task(keeper.settle("k", made.revision))
        clock.advance(11)
        assert await asyncio.wait_for(settled, PATIENCE_SECONDS) == []
        assert await keeper.members() == []

    asyncio.run(run())


def test_a_new_keeper_waits_until_the_replicas_have_had_time_to_come(
    store: str, clock: ManualClock
) -> None:
    async def run() -> None:
        made = await Keeper(store).commit("k", {"x": 1}, 0)
        keeper = Keeper(store, lost_seconds=10, clock=clock)
        settled = asyncio.create_task(keeper.settle("k", made.revision))
        await keeper.report(A, ready(made.revision, failed={"k": "why"}))
        assert not settled.done()
        clock.advance(10)
        await keeper.report(A, ready(made.revision, failed={"k": "why"}))
        assert await asyncio.wait_for(settled, PATIENCE_SECONDS) == [Problem(A, "why")]

    asyncio.run(run())


def test_a_replica_enters_when_it_has_caught_up(store: str) -> None:
    async def run() -> None:
        keeper = Keeper(store)
        update = await keeper.follow(A, ReplicaStatus(), "")
        heard = ReplicaStatus(False, update.changes.revision)
        made = await keeper.commit("k", {"x": 1}, 0)
        assert not await keeper.enter(A, heard)
        assert not await keeper.enter(A, ReplicaStatus(False, made.revision, frozenset({"k"})))
        assert await keeper.enter(A, ReplicaStatus(False, made.revision))
        ((member, status),) = await keeper.members()
        assert (member, status.ready) == (A, True)

    asyncio.run(run())


def test_models_that_nobody_needs_are_removed_after_a_while(
    store: str, clock: ManualClock, tmp_path: Path
) -> None:
    async def run() -> None:
        keeper = Keeper(store, clock=clock)
        value = networks.loaded(None, "1", "{}", "used", "s", alone=True)
        await keeper.commit("network/n", value, 0)
        models = tmp_path / "store" / "models"
        models.mkdir()
        then = time.time() - 2 * UNUSED_SECONDS
        for name in ("used", "old", "new"):
            (models / f"{name}.onnx").write_bytes(b"")
            if name != "new":
                os.utime(models / f"{name}.onnx", (then, then))
        clock.advance(module.SWEEP_SECONDS + 1)
        await keeper.members()
        assert keeper._sweeping is not None
        await keeper._sweeping
        assert sorted(each.stem for each in models.iterdir()) == ["new", "used"]

    asyncio.run(run())


def asking(replicas: int, stamp: str = "s") -> Value:
    return networks.loaded(None, "1", "{}", "digest", stamp, alone=True, asked=replicas)


async def told(
    keeper: Keeper, member: ReplicaAddress, known: str = ""
) -> tuple[ReplicaStatus, Update]:
    """What a replica hears that has done everything before."""
    update = await asyncio.wait_for(keeper.follow(member, ready(0), known), PATIENCE_SECONDS)
    status = ready(update.changes.revision)
    await keeper.report(member, status)
    return status, update


async def moved(keeper: Keeper, name: str, holders: tuple[str, ...]) -> None:
    """Returns when these replicas are to have the network."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            update = await keeper.follow(B, ReplicaStatus(True, 0), "")
            place = update.changes.entries.get(choice.key_of(name))
            if place is not None and choice.holders_of(place.value) == holders:
                return
            await asyncio.sleep(0)


def test_a_network_gets_its_replicas_together_with_its_change(store: str) -> None:
    async def run() -> None:
        keeper = Keeper(store)
        for each in (A, B):
            await told(keeper, each)
        made = await keeper.commit("network/n", asking(1), 0)
        update = await keeper.follow(A, ready(0), "")
        assert update.changes.entries["network/n"].revision == made.revision
        assert update.changes.entries["place/n"].value == {"holders": ["a"]}
        await keeper.commit("network/m", asking(1), 0)
        again = Keeper(store)
        update = await again.follow(A, ReplicaStatus(), "")
        assert update.changes.entries["place/m"].value == {"holders": ["b"]}
        gone = await keeper.commit("network/n", None, made.revision)
        update = await keeper.follow(A, ready(made.revision), "")
        assert update.changes.entries["network/n"] == (gone.revision, None)
        assert update.changes.entries["place/n"].value is None

    asyncio.run(run())


def test_nobody_hears_of_a_network_before_or_after_its_replicas(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every replica would load it for a moment."""
    heard: list[dict[str, VersionedValue]] = []
    write = Archive.write

    async def run() -> None:
        keeper = Keeper(store)
        await told(keeper, A)
        begin = await keeper.follow(A, ready(0), "")

        def noted(self: Archive, key: str, entry: VersionedValue) -> None:
            write(self, key, entry)
            heard.append(dict(keeper._desired.since(begin.changes.revision).entries))

        monkeypatch.setattr(Archive, "write", noted)
        made = await keeper.commit("network/n", asking(1), 0)
        assert heard == [{}, {}]
        there = dict(keeper._desired.since(begin.changes.revision).entries)
        assert there.keys() == {"network/n", "place/n"}
        await keeper.commit("network/n", None, made.revision)
        assert heard[2:] == [there, there]

    asyncio.run(run())


def test_a_lost_replica_is_replaced_where_a_network_needs_it(
    store: str, clock: ManualClock
) -> None:
    async def run() -> None:
        keeper = Keeper(store, lost_seconds=10, clock=clock)
        await told(keeper, A)
        await keeper.commit("network/n", asking(1), 0)
        await told(keeper, B)
        clock.advance(8)
        await told(keeper, B)
        clock.advance(8)
        await moved(keeper, "n", ("b",))

    asyncio.run(run())


def test_a_new_keeper_leaves_networks_where_they_are(store: str, clock: ManualClock) -> None:
    async def run() -> None:
        first = Keeper(store)
        await told(first, A)
        made = await first.commit("network/n", asking(1), 0)
        keeper = Keeper(store, lost_seconds=10, clock=clock)
        await told(keeper, B)
        made = await keeper.commit("network/n", asking(1, "again"), made.revision)
        update = await keeper.follow(B, ReplicaStatus(), "")
        assert update.changes.entries["place/n"].value == {"holders": ["a"]}
        clock.advance(9)
        await told(keeper, B)
        clock.advance(2)  # a has not come back
        await moved(keeper, "n", ("b",))

    asyncio.run(run())


def test_a_replica_may_end_when_others_have_its_networks(store: str) -> None:
    async def run() -> None:
        keeper = Keeper(store)
        await told(keeper, A)
        await keeper.commit("network/n", asking(1), 0)
        await told(keeper, A)
        await told(keeper, B)
        released = asyncio.create_task(keeper.release("a"))
        await moved(keeper, "n", ("b", "a"))
        assert not released.done()
        await told(keeper, B)
        await asyncio.wait_for(released, PATIENCE_SECONDS)
        await keeper.leave("a")
        await moved(keeper, "n", ("b",))

    asyncio.run(run())


def test_the_last_replica_may_end_at_once(store: str) -> None:
    async def run() -> None:
        keeper = Keeper(store)
        await told(keeper, A)
        await keeper.commit("network/n", asking(2), 0)
        await asyncio.wait_for(keeper.release("a"), PATIENCE_SECONDS)

    asyncio.run(run())
