"""Takes a replica to the desired state, and tells where it stands.

One task follows the keeper. Each key that differs gets a task of its own; the loads inside run on
the core's threads. Extensions and devices' configurations come before the networks that may need
them. What fails is tried again, and the reason is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from headrace.cluster import networks
from headrace.cluster.desired import NOTHING, Entry, Value
from headrace.cluster.keeper import Keeping, Update
from headrace.cluster.members import Member, Standing, roster
from headrace.cluster.objects import Objects
from headrace.cluster.store import DEVICE, ClusterStore, converging, extension_name, model_name
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.errors import AlreadyExists, HeadraceError, Internal, NotFound
from headrace.runtime.network.network import Network
from headrace.runtime.system.backoff import Backoff
from headrace.runtime.transform.options import LoadRequest
from headrace.server.services.targets import configure

_log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Networks that change at the same time. The core takes 256 loads."""

_BUSY_SECONDS: Final = 0.1
_FIRST_SECONDS: Final = 0.5


class Convergence:
    """Belongs to the event loop.

    Args:
        changed: called with the name of a network that was loaded, failed or was removed.
    """

    def __init__(
        self,
        core: Core,
        store: ClusterStore,
        objects: Objects,
        keeper: Keeping,
        member: Member,
        changed: Callable[[str], object],
    ) -> None:
        self._core = core
        self._store = store
        self._objects = objects
        self._keeper = keeper
        self.member = member
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._ready = False
        self._heard = NOTHING
        self._roster = ""
        self._want: dict[str, Entry] = {}
        self._failed: dict[str, str] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._retrying: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._owners: dict[str, object] = {}
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
            self._take(await self._keeper.follow(self.member, self._standing(), self._roster))
            while self._tasks:
                await asyncio.wait(self._tasks.values())
            if await self._keeper.enter(self.member, self._standing()):
                self._ready = True
                self._following = asyncio.create_task(self._follow())
                return

    async def stop(self) -> None:
        """Leaves the cluster. What is loaded stays loaded."""
        following = [self._following] if self._following else []
        tasks = [*self._tasks.values(), *self._reporting, *following]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(HeadraceError):
            await self._keeper.leave(self.member.name)

    # -- following --

    async def _follow(self) -> None:
        backoff = Backoff(_FIRST_SECONDS)
        while True:
            try:
                update = await self._keeper.follow(self.member, self._standing(), self._roster)
            except HeadraceError as error:
                _log.warning("the cluster's keeper does not answer: %s", error)
                await asyncio.sleep(_delay(backoff))
                continue
            backoff = Backoff(_FIRST_SECONDS)
            self._take(update)

    def _take(self, update: Update) -> None:
        changes = update.changes
        found = dict(changes.entries)
        if changes.whole:
            gone = (self._store.keys() | self._want.keys()) - found.keys()
            found |= {key: Entry(changes.revision, None) for key in gone}
        self._want |= found
        self._heard = changes.revision
        self._roster = roster(update.members)
        for key in sorted(found, key=lambda key: (key.startswith(networks.PREFIX), found[key][0])):
            self._look(key)

    def _standing(self) -> Standing:
        pending = self._tasks.keys() | {key for key in self._want if self._due(key)}
        return Standing(self._ready, self._heard, frozenset(pending), dict(self._failed))

    def _due(self, key: str) -> bool:
        if key in self._retrying:
            return True
        want, known = self._want[key], self._store.knows(key)
        return known != NOTHING if want.value is None else known < want.revision

    def _look(self, key: str) -> None:
        """Starts to change a key, if it differs and nobody is changing it."""
        if key not in self._want or key in self._tasks or self._store.busy(key):
            return
        if self._due(key):
            self._tasks[key] = task = self._loop.create_task(self._converge(key))
            task.add_done_callback(partial(self._ended, key))
        elif self._want[key].value is None:
            del self._want[key]

    def _committed(self) -> None:
        """A change of this replica's own has ended. Until then it has left the key alone."""
        for key in list(self._want):
            self._look(key)
        if self._ready:
            task = self._loop.create_task(self._report(self._standing()))
            self._reporting.add(task)
            task.add_done_callback(self._reporting.discard)

    async def _report(self, standing: Standing) -> None:
        with suppress(HeadraceError):  # the next question to the keeper tells it
            await self._keeper.report(self.member, standing)

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
        want = self._want[key]
        self._retrying.discard(key)
        reason = await self._attempt(key, want.value)
        if reason is None:
            self._failed.pop(key, None)
            self._backoffs.pop(key, None)
            self._store.dealt(key, want, want.value)
        else:
            self._failed[key] = reason
            self._store.dealt(key, want, self._store.has(key))
        if self._ready:
            standing = self._standing()
            pending = standing.pending - ({key} if not self._due(key) else set())
            await self._report(replace(standing, pending=pending))

    async def _attempt(self, key: str, want: Value | None) -> str | None:
        """Changes a key. Returns why it could not."""
        try:
            with converging():
                if key.startswith(networks.PREFIX):
                    await self._network(key.removeprefix(networks.PREFIX), key, want)
                elif key.startswith(DEVICE) and want is not None:
                    device = DeviceName.parse(key.removeprefix(DEVICE))
                    await asyncio.to_thread(self._core.set_config, device, want["config"])
                elif want is not None:
                    await asyncio.to_thread(self._extend, key, want)
        except HeadraceError as error:
            if not isinstance(error, Internal):
                return error.message
            _log.exception("cannot change %s", key)
        except Exception:  # noqa: BLE001 - the other keys go on
            _log.exception("cannot change %s", key)
        else:
            return None
        return "an internal error; the replica's log has the reason"

    def _extend(self, key: str, want: Value) -> None:
        device = key.split("/")[1]
        functions = self._objects.read(extension_name(want["digest"]))
        self._core.add_extension(DeviceName.parse(device), functions)

    async def _network(self, name: str, key: str, want: Value | None) -> None:
        others = [task for key, task in self._tasks.items() if not key.startswith(networks.PREFIX)]
        if others:
            await asyncio.wait(others)
        try:
            async with self._at_once:
                for step in networks.steps(self._store.has(key), want):
                    await self._step(name, step)
        finally:
            self._changed(name)

    async def _step(self, name: str, step: networks.Step) -> None:
        match step:
            case networks.Load(_, facts, alone):
                await self._load(name, facts, alone=alone)
            case networks.Configure(version, changes):
                await asyncio.to_thread(self._configure, name, version, changes)
            case networks.Unload(version):
                with suppress(NotFound):
                    unloaded = await asyncio.to_thread(self._core.unload_network, name, version)
                    await asyncio.wrap_future(unloaded)
            case networks.Share(shares):
                await asyncio.to_thread(self._core.set_traffic, name, shares)

    async def _load(self, name: str, facts: Mapping[str, Any], *, alone: bool) -> None:
        said = LoadRequest.from_json(facts["request"])
        request = replace(said, name=name, config={**said.config, **facts["config"]})
        owner = None if alone else self._owners.setdefault(name, object())
        read = partial(self._read, facts["model"])
        while True:
            try:
                load = await asyncio.to_thread(
                    partial(
                        self._core.load_network,
                        *(request, read),
                        replace=True,
                        on_disk=True,
                        owner=owner,
                    )
                )
                break
            except AlreadyExists:  # a client loads it here, and finds that it is too late
                await asyncio.sleep(_BUSY_SECONDS)
        try:
            await asyncio.shield(asyncio.wrap_future(load))
        except asyncio.CancelledError:
            self._core.cancel_load(load)
            raise

    def _configure(self, name: str, version: str, changes: Mapping[str, str]) -> None:
        entry = self._core.networks.acquire(name, version)
        try:
            configure(entry, changes, None)
        finally:
            self._core.networks.release(entry)

    def _read(self, digest: str) -> Network:
        data = self._objects.read(model_name(digest))
        return Network.from_bytes(data, self._core.limits, spooled=True)


def _delay(backoff: Backoff) -> float:
    return backoff.died(0.0, useful=False)
