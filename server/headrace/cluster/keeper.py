"""Keeps the desired state of a cluster, and knows its replicas. One for each cluster.

Ray runs it as a detached actor. If the actor ends, Ray starts it again, and it reads the state from
the shared store. Each change is in the store before anybody hears of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from headrace.cluster import networks
from headrace.cluster.desired import NOTHING, Changes, Conflict, Desired, Entry, Value
from headrace.cluster.members import (
    LOST_SECONDS,
    Member,
    Members,
    Problem,
    Standing,
    roster,
)
from headrace.cluster.objects import Objects
from headrace.runtime.errors import NotFound

_log = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0
"""How long a replica's question for changes waits for an answer. It also shows that it lives."""

SWEEP_SECONDS: Final = 600.0
UNUSED_SECONDS: Final = 3600.0
"""The age at which a model or an upload that no network needs is removed from the store."""

_STATE = "desired"
_KEY = "blob.key"
MODELS = "models"
UPLOADS = "uploads"


class Committed(NamedTuple):
    """The outcome of a change: its revision. `newest` is set if the change was refused, because it
    builds on an older one."""

    revision: int
    newest: Entry | None = None


class Update(NamedTuple):
    """News for a replica: changes of the desired state, and the live replicas."""

    changes: Changes
    members: tuple[Member, ...]


class Keeping(Protocol):
    """What a replica asks of the keeper, wherever the keeper runs."""

    def commit(self, key: str, value: Value | None, expected: int) -> Committed:
        """As `Keeper.commit`. Waits for the answer; not for the event loop.

        Raises:
            Unavailable: the keeper cannot be reached, or cannot write to its store.
        """

    def follow(self, member: Member, standing: Standing, known: str) -> Awaitable[Update]: ...

    def report(self, member: Member, standing: Standing) -> Awaitable[None]: ...

    def enter(self, member: Member, standing: Standing) -> Awaitable[bool]: ...

    def settle(self, key: str, revision: int) -> Awaitable[list[Problem]]: ...

    def leave(self, name: str) -> Awaitable[None]: ...


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
        self._objects = Objects(store)
        self._clock = clock
        self._members = Members(lost_seconds)
        self._lost_seconds = lost_seconds
        entries = dict(map(self._read, self._objects.names(_STATE)))
        # Removed keys have left no trace, so the clock makes sure that revisions only grow.
        self._desired = Desired(entries, time.time_ns() // 1_000)
        # Replicas that this keeper has not met may be there already.
        self._met_all_at = clock() + (lost_seconds if entries else 0.0)
        self._key = self._make_key()
        self._writing = asyncio.Lock()
        self._news = asyncio.Event()
        self._swept_at = clock()
        self._sweeping: asyncio.Future[None] | None = None

    async def commit(self, key: str, value: Value | None, expected: int) -> Committed:
        """Changes a key, if `expected` is its newest revision. None removes the key."""
        async with self._writing:
            there = self._desired.entries.get(key)
            if (there.value if there is not None else None) == value:
                # The change was made, but its answer was lost, and so it was sent again.
                return Committed(there.revision if there is not None else self._desired.revision)
            try:
                self._desired.check(key, expected)
            except Conflict as conflict:
                return Committed(conflict.newest, there or Entry(NOTHING, None))
            await asyncio.to_thread(self._write, key, value, self._desired.revision + 1)
            revision = self._desired.change(key, value)
        self._tell()
        return Committed(revision)

    async def follow(self, member: Member, standing: Standing, known: str) -> Update:
        """Returns the changes since `standing`, at the latest after `POLL_SECONDS`.

        Args:
            known: the `roster` of the replicas that the replica knows. It also hears when others
                join or leave.
        """
        if self._members.tell(member, standing, self._clock()):
            _log.info("replica %s on %s joined", member.name, member.node)
        self._tell()
        until = self._clock() + POLL_SECONDS
        while True:
            changes = self._desired.since(standing.revision)
            live = self._live()
            left = until - self._clock()
            if changes.entries or changes.whole or roster(live) != known or left <= 0:
                return Update(changes, live)
            await self._wait(left)

    async def report(self, member: Member, standing: Standing) -> None:
        """Notes where a replica stands."""
        self._members.tell(member, standing, self._clock())
        self._tell()

    async def enter(self, member: Member, standing: Standing) -> bool:
        """Makes a new replica one that clients' changes wait for, if it is up to date.

        A replica that is still catching up delays nobody. It takes no requests before this method
        has returned True, so no client meets a replica without a network that a load has reported.
        """
        if standing.pending or standing.revision != self._desired.revision:
            return False
        self._members.tell(member, replace(standing, ready=True), self._clock())
        self._tell()
        return True

    async def leave(self, name: str) -> None:
        """Forgets a replica that ends."""
        if self._members.leave(name):
            _log.info("replica %s left", name)
            self._tell()

    async def settle(self, key: str, revision: int) -> list[Problem]:
        """Waits until every live replica has dealt with a revision of a key. Returns those that
        could not do it."""
        while True:
            self._live()
            left = self._met_all_at - self._clock()
            if left <= 0 and not self._members.behind(key, revision):
                return self._members.problems(key)
            await self._wait(max(left, 1.0))

    async def key(self) -> bytes:
        """The key that signs the exports of all replicas."""
        return self._key

    async def members(self) -> list[tuple[Member, Standing]]:
        """The live replicas, and where each stands."""
        return [(each, self._members.standing(each.name)) for each in self._live()]

    async def swept(self) -> None:
        """Returns when no unused model is being removed."""
        if self._sweeping is not None:
            await self._sweeping

    # -- inside --

    def _live(self) -> tuple[Member, ...]:
        for lost in self._members.lose(self._clock()):
            _log.warning("replica %s on %s is lost", lost.name, lost.node)
            self._tell()
        if self._clock() - self._swept_at > SWEEP_SECONDS:
            self._swept_at = self._clock()
            self._sweeping = asyncio.ensure_future(asyncio.to_thread(self._sweep, self._used()))
        return tuple(self._members.live())

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _wait(self, seconds: float) -> None:
        """Waits for news, and looks at the clock every second."""
        with suppress(TimeoutError):
            # `wait_for` would lose a cancel that comes together with the news.
            async with asyncio.timeout(min(seconds, 1.0)):
                await self._news.wait()

    def _make_key(self) -> bytes:
        try:
            return self._objects.read(_KEY)
        except NotFound:
            self._objects.write(_KEY, [key := secrets.token_bytes(32)])
            return key

    def _used(self) -> set[str]:
        values = (entry.value for entry in self._desired.entries.values())
        return {
            digest
            for value in values
            if value is not None and "versions" in value
            for digest in networks.models(value)
        }

    def _sweep(self, used: set[str]) -> None:
        """Removes what no network needs. Runs on another thread."""
        for folder in (MODELS, UPLOADS):
            for name in self._objects.names(folder):
                path = f"{folder}/{name}"
                if name.partition(".")[0] in used or self._objects.age(path) < UNUSED_SECONDS:
                    continue
                self._objects.remove(path)

    def _read(self, name: str) -> tuple[str, Entry]:
        facts = json.loads(self._objects.read(f"{_STATE}/{name}"))
        return str(facts["key"]), Entry(int(facts["revision"]), facts["value"])

    def _write(self, key: str, value: Value | None, revision: int) -> None:
        name = f"{_STATE}/{hashlib.sha256(key.encode()).hexdigest()}.json"
        if value is None:
            self._objects.remove(name)
        else:
            facts = {"key": key, "revision": revision, "value": value}
            self._objects.write(name, [json.dumps(facts).encode()])
