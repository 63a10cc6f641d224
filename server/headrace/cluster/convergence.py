"""Takes a replica to the desired state, and tells where it stands.

One task follows the keeper. Each key that differs gets a task of its own; the loads inside run on
the core's threads. Extensions and devices' configurations come before the networks that may need
them. What fails is tried again, and the reason is told.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from headrace.cluster import networks
from headrace.cluster.actions import Actions
from headrace.cluster.desired import NOTHING, Value, VersionedValue
from headrace.cluster.keeping import KeeperClient, Update
from headrace.cluster.members import ReplicaAddress, ReplicaStatus
from headrace.cluster.placement import choice
from headrace.cluster.placement.directory import Directory
from headrace.cluster.store import ClusterStore, converging
from headrace.runtime.errors import HeadraceError, Internal
from headrace.runtime.system.backoff import Backoff
from headrace.server.reconcile import steps

_log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Networks that change at the same time. The core takes 256 loads."""

_FIRST_SECONDS: Final = 0.5


class Convergence:
    """Belongs to the event loop.

    Args:
        directory: is told which replicas have which networks.
        changed: called with the name of a network that was loaded, failed, was removed, or moved
            between other replicas.
    """

    def __init__(
        self,
        actions: Actions,
        store: ClusterStore,
        keeper: KeeperClient,
        member: ReplicaAddress,
        directory: Directory,
        changed: Callable[[str], object],
    ) -> None:
        self._actions = actions
        self._store = store
        self._keeper = keeper
        self.member = member
        self._directory = directory
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._ready = False
        self._numbers = itertools.count()
        self._heard = NOTHING
        self._roster = ""
        self._want: dict[str, VersionedValue] = {}
        self._places: dict[str, int] = {}  # the revisions of the places, by network
        self._placed: dict[str, int] = {}  # those that the replica has dealt with
        self._failed: dict[str, str] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._retrying: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._following: asyncio.Task[None] | None = None
        self._reporting: set[asyncio.Task[None]] = set()
        store.changed = lambda: self._loop.call_soon_threadsafe(self._committed)

    # -- life --

    async def start(self) -> None:
        """Returns when the replica has what the desired state says, or knows why it has not.

        Raises:
            Unavailable: the keeper cannot be reached.
        """
        while True:
            self._take(await self._keeper.follow(self.member, self._status(), self._roster))
            while self._tasks:
                await asyncio.wait(self._tasks.values())
            if await self._keeper.enter(self.member, self._status()):
                self._ready = True
                self._following = asyncio.create_task(self._follow())
                return

    async def release(self, seconds: float) -> None:
        """Returns when the replica may end because other replicas have its networks, at the latest
        after so many seconds."""
        with suppress(HeadraceError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self._keeper.release(self.member.name)

    async def stop(self) -> None:
        """Leaves the cluster. What is loaded stays loaded."""
        following = [self._following] if self._following else []
        tasks = [*self._tasks.values(), *self._reporting, *following]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(HeadraceError):
            await self._keeper.leave(self.member.name)

    # -- following --

    async def _follow(self) -> None:
        backoff = Backoff(_FIRST_SECONDS)
        while True:
            try:
                update = await self._keeper.follow(self.member, self._status(), self._roster)
            except HeadraceError as error:
                _log.warning("the cluster's keeper does not answer: %s", error)
                await asyncio.sleep(_delay(backoff))
                continue
            backoff = Backoff(_FIRST_SECONDS)
            self._take(update)

    def _take(self, update: Update) -> None:
        changes = update.changes
        newer = dict(changes.entries)
        if changes.whole:
            places = map(choice.key_of, self._places)
            gone = (self._store.keys() | self._want.keys()).union(places) - newer.keys()
            newer |= {key: VersionedValue(changes.revision, None) for key in gone}
        self._heard = changes.revision
        self._roster = update.roster
        moved = set() if update.members is None else set(self._directory.meet(update.members))
        for key in [key for key in newer if key.startswith(choice.PREFIX)]:
            moved.add(name := key.removeprefix(choice.PREFIX))
            self._place(name, newer.pop(key))
        self._want |= newer
        for key in sorted(newer, key=lambda key: (key.startswith(networks.PREFIX), newer[key][0])):
            self._look(key)
        for name in moved:
            self._look(networks.key_of(name))
            self._changed(name)

    def _place(self, name: str, entry: VersionedValue) -> None:
        self._directory.place(name, entry.value)
        if entry.value is None:
            self._places.pop(name, None)
        else:
            self._places[name] = entry.revision

    def _status(self) -> ReplicaStatus:
        pending = self._tasks.keys() | {key for key in self._want if self._due(key)}
        failed, number = dict(self._failed), next(self._numbers)
        return ReplicaStatus(self._ready, self._heard, frozenset(pending), failed, number)

    def _due(self, key: str) -> bool:
        if key in self._retrying:
            return True
        want, known = self._want[key], self._store.knows(key)
        if want.value is None:
            return known != NOTHING
        name = key.removeprefix(networks.PREFIX)
        place = self._places.get(name, NOTHING)
        return known < want.revision or self._placed.get(name, NOTHING) < place

    def _look(self, key: str) -> None:
        """Starts to change a key, if it differs and nobody is changing it."""
        if key not in self._want or key in self._tasks or self._store.busy(key):
            return
        if self._due(key):
            self._tasks[key] = task = self._loop.create_task(self._converge(key))
            task.add_done_callback(partial(self._ended, key))
        elif self._want[key].value is None:
            del self._want[key]
            self._placed.pop(key.removeprefix(networks.PREFIX), None)

    def _committed(self) -> None:
        """A change of this replica's own has ended. Until then it has left the key alone."""
        for key in list(self._want):
            self._look(key)
        if self._ready:
            task = self._loop.create_task(self._report(self._status()))
            self._reporting.add(task)
            task.add_done_callback(self._reporting.discard)

    async def _report(self, status: ReplicaStatus) -> None:
        with suppress(HeadraceError):  # the next question to the keeper tells it
            await self._keeper.report(self.member, status)

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if task.cancelled():
            return
        self._look(key)
        if key in self._failed and key not in self._tasks:
            backoff = self._backoffs.setdefault(key, Backoff(_FIRST_SECONDS))
            self._loop.call_later(_delay(backoff), self._retry, key)

    def _retry(self, key: str) -> None:
        if key in self._failed and key in self._want and key not in self._tasks:
            self._retrying.add(key)
            self._look(key)

    # -- changing --

    async def _converge(self, key: str) -> None:
        want, name = self._want[key], key.removeprefix(networks.PREFIX)
        self._retrying.discard(key)
        place = self._places.get(name, NOTHING)
        value = want.value if self._directory.is_for(name) else None
        reason = await self._attempt(key, value)
        self._placed[name] = place
        if reason is None:
            self._failed.pop(key, None)
            self._backoffs.pop(key, None)
            self._store.dealt(key, want, value)
        else:
            self._failed[key] = reason
            self._store.dealt(key, want, self._store.has(key))
        if self._ready:
            status = self._status()
            pending = status.pending - ({key} if not self._due(key) else set())
            await self._report(replace(status, pending=pending))

    async def _attempt(self, key: str, want: Value | None) -> str | None:
        """Changes a key. Returns why it could not."""
        try:
            with converging():
                if key.startswith(networks.PREFIX):
                    await self._network(key.removeprefix(networks.PREFIX), key, want)
                elif want is not None:
                    await self._actions.change_device(key, want)
        except HeadraceError as error:
            if not isinstance(error, Internal):
                return error.message
            _log.exception("cannot change %s", key)
        except Exception:  # noqa: BLE001 - the other keys go on
            _log.exception("cannot change %s", key)
        else:
            return None
        return "an internal error; the replica's log has the reason"

    async def _network(self, name: str, key: str, want: Value | None) -> None:
        others = [task for key, task in self._tasks.items() if not key.startswith(networks.PREFIX)]
        if others:
            await asyncio.wait(others)
        try:
            async with self._at_once:
                have = networks.have(self._store.has(key))
                for step in steps(have, networks.want(want)):
                    await self._actions.take(step, name, want)
        finally:
            self._changed(name)


def _delay(backoff: Backoff) -> float:
    return backoff.died(0.0, useful=False)
