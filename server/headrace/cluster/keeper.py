"""Keeps the desired state of a cluster, and knows its replicas. One for each cluster.

Ray runs it as a detached actor. If the actor ends, Ray starts it again, and it reads the state from
the shared store. Each change is in the store before anybody hears of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from headrace.cluster import networks
from headrace.cluster.desired import NOTHING, DesiredState, Value, VersionedValue
from headrace.cluster.keeping import CommitResult, Update
from headrace.cluster.members import LOST_SECONDS, Members, Problem, ReplicaAddress, ReplicaStatus
from headrace.cluster.placement import choice
from headrace.cluster.shared.archive import Archive
from headrace.runtime.errors import HeadraceError

_log = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0
"""How long a replica's question for changes waits for an answer. It also shows that it lives."""

SWEEP_SECONDS: Final = 600.0

_TICK_SECONDS: Final = 1.0
"""How often the keeper looks at the clock."""


class Keeper:
    """Belongs to one event loop. Only the store is asked on other threads.

    Args:
        store: as `Objects`.
        lost_seconds: as `Members`.
        clock: the monotonic clock.
    """

    def __init__(
        self,
        store: str,
        *,
        lost_seconds: float = LOST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._archive = Archive(store)
        self._clock = clock
        self._members = Members(lost_seconds)
        self._lost_seconds = lost_seconds
        entries = self._archive.entries()
        # Removed keys have left no trace, so the clock makes sure that revisions only grow.
        self._desired = DesiredState(entries, time.time_ns() // 1_000)
        self._places = choice.Placement(entries)
        self._must_place = True
        self._placing: asyncio.Task[None] | None = None
        # Replicas that this keeper has not met may be there already.
        self._met_all_at = clock() + (lost_seconds if entries else 0.0)
        self._key = self._archive.signing_key()
        self._writing = asyncio.Lock()
        self._news = asyncio.Event()  # of changes and of replicas
        self._progress = asyncio.Event()  # of a replica
        self._looked_at = clock()
        self._swept_at = clock()
        self._sweeping: asyncio.Future[None] | None = None

    async def commit(self, key: str, value: Value | None, expected: int) -> CommitResult:
        """Changes a key, if `expected` is its newest revision. None removes the key."""
        async with self._writing:
            there = self._desired.entries.get(key)
            if (there.value if there is not None else None) == value:
                # The change was made, but its answer was lost, and so it was sent again.
                return CommitResult(there.revision if there is not None else self._desired.revision)
            newest = self._desired.newest(key)
            if newest != expected:
                return CommitResult(newest, there or VersionedValue(NOTHING, None))
            is_network = key.startswith(networks.PREFIX)
            places = self._placed(key.removeprefix(networks.PREFIX), value) if is_network else {}
            revision = await self._change({**places, key: value})
        self._tell()
        return CommitResult(revision)

    async def follow(self, member: ReplicaAddress, status: ReplicaStatus, known: str) -> Update:
        """Returns the changes since `status`, at the latest after `POLL_SECONDS`.

        Args:
            known: the `roster` of the replicas that the replica knows. It also hears when others
                join or leave.
        """
        self._hear(member, status)
        until = self._clock() + POLL_SECONDS
        while True:
            changes = self._desired.since(status.revision)
            self._look()
            left = until - self._clock()
            roster = self._members.roster()
            if changes.entries or changes.whole or roster != known or left <= 0:
                return Update(changes, roster, None if roster == known else self._members.live())
            await _wait(self._news, left)

    async def report(self, member: ReplicaAddress, status: ReplicaStatus) -> None:
        """Notes where a replica stands."""
        self._hear(member, status)

    async def enter(self, member: ReplicaAddress, status: ReplicaStatus) -> bool:
        """Makes a new replica one that clients' changes wait for, if it is up to date.

        A replica that is still catching up delays nobody. It takes no requests before this method
        has returned True, so no client meets a replica without a network that a load has reported.
        """
        if status.pending or status.revision != self._desired.revision:
            return False
        self._must_place = True
        self._hear(member, replace(status, ready=True))
        return True

    async def release(self, name: str) -> None:
        """Returns when a replica may end, because others have the networks that ask for a number of
        replicas. Until then the replica serves them."""
        if self._members.will_leave(name):
            self._must_place = True
        while True:
            self._look()
            if self._placing is None and all(map(self._is_elsewhere, self._places.placed_on(name))):
                return
            await _wait(self._progress, _TICK_SECONDS)

    async def leave(self, name: str) -> None:
        """Forgets a replica that ends."""
        if self._members.leave(name):
            _log.info("replica %s left", name)
            self._must_place = True
            self._tell()

    async def settle(self, key: str, revision: int) -> list[Problem]:
        """Waits until every live replica has dealt with a revision of a key. Returns those that
        could not do it."""
        while self._clock() < self._met_all_at:
            await _wait(self._progress, _TICK_SECONDS)
        late = self._members.behind(key, revision)
        while True:
            self._look()
            # Each report of a replica comes here, and there may be a thousand replicas.
            while late and not self._members.is_behind(late[-1], key, revision):
                late.pop()
            if not late:
                return self._members.problems(key)
            await _wait(self._progress, _TICK_SECONDS)

    async def key(self) -> bytes:
        """The key that signs the exports of all replicas."""
        return self._key

    async def members(self) -> list[tuple[ReplicaAddress, ReplicaStatus]]:
        """The live replicas, and where each stands."""
        self._look()
        return [(member, self._members.status(member.name)) for member in self._members.live()]

    # -- inside --

    def _hear(self, member: ReplicaAddress, status: ReplicaStatus) -> None:
        """Takes over where a replica stands."""
        if self._members.tell(member, status, self._clock()):
            _log.info("replica %s on %s joined", member.name, member.node)
            self._tell()
        else:
            self._progress = _told(self._progress)

    def _look(self) -> None:
        """Looks at the clock: for lost replicas, and for what is to be done from time to time."""
        if self._must_place and self._placing is None and self._clock() >= self._met_all_at:
            self._must_place = False
            self._placing = asyncio.create_task(self._place_all())
        if self._clock() - self._looked_at < _TICK_SECONDS:
            return
        self._looked_at = self._clock()
        for lost in self._members.lose(self._clock()):
            _log.warning("replica %s on %s is lost", lost.name, lost.node)
            self._must_place = True
            self._tell()
        if self._clock() - self._swept_at > SWEEP_SECONDS:
            self._swept_at = self._clock()
            self._sweeping = asyncio.ensure_future(
                asyncio.to_thread(self._archive.sweep, self._used())
            )

    async def _change(self, changes: Mapping[str, Value | None]) -> int:
        """Writes changes into the store, and then makes all of them at once, so that nobody hears
        of a part. The caller holds `_writing`.

        Returns:
            The revision of the last one.
        """
        for revision, (key, value) in enumerate(changes.items(), self._desired.revision + 1):
            await asyncio.to_thread(self._archive.write, key, VersionedValue(revision, value))
        for key, value in changes.items():
            self._places.note(key, value)
            self._desired.change(key, value)
        return self._desired.revision

    def _placed(self, name: str, value: Value | None) -> dict[str, Value | None]:
        """Chooses the replicas of a network that changes. Returns the change that this needs, if
        any. The caller holds `_writing`."""
        key, wanted = choice.key_of(name), None
        if asked := networks.replicas(value):
            staying, leaving = self._members.staying(), self._members.leaving()
            if self._clock() < self._met_all_at:
                staying |= set(self._places.of(name)) - leaving
            wanted = self._places.chosen(name, asked, staying, leaving)
        there = self._desired.entries.get(key)
        return {} if wanted == (there.value if there is not None else None) else {key: wanted}

    async def _place_all(self) -> None:
        """Chooses replicas for all networks that have lost some, or have too few."""
        try:
            async with self._writing:
                staying, leaving = self._members.staying(), self._members.leaving()
                for key, value in self._places.moves(staying, leaving):
                    await self._change({key: value})
        except HeadraceError as error:
            _log.warning("cannot move networks to other replicas: %s", error)
            self._must_place = True
        else:
            self._tell()
        finally:
            self._placing = None

    def _is_elsewhere(self, name: str) -> bool:
        """Whether enough replicas that stay have a network, as far as there are such replicas."""
        staying, entries = self._members.staying(), self._desired.entries
        key = networks.key_of(name)
        there = entries[choice.key_of(name)].revision
        late = {*self._members.behind(key, there)}
        late |= {problem.member.name for problem in self._members.problems(key)}
        wanted = min(networks.replicas(entries[key].value), len(staying)) if key in entries else 0
        return len(staying.intersection(self._places.of(name)) - late) >= wanted

    def _tell(self) -> None:
        """Wakes the replicas that wait for news, and the changes that wait for replicas."""
        self._news, self._progress = _told(self._news), _told(self._progress)

    def _used(self) -> set[str]:
        values = (entry.value for entry in self._desired.entries.values())
        return {
            digest
            for value in values
            if value is not None and "versions" in value
            for digest in networks.models(value)
        }


def _told(event: asyncio.Event) -> asyncio.Event:
    """Wakes those who wait, and returns the event for those who wait from now on."""
    event.set()
    return asyncio.Event()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        # `wait_for` would lose a cancel that comes together with the event.
        async with asyncio.timeout(seconds):
            await event.wait()
