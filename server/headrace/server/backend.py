"""Builds the devices and the networks of one server, which all its listeners serve."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from headrace.runtime.core import Core
from headrace.runtime.errors import FailedPrecondition, NotFound
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.entry import NetworkEntry, NetworkState
from headrace.runtime.loading.memory_budget import SHARED, MemoryBudget
from headrace.runtime.loading.table import OwnerLimits
from headrace.runtime.system.memory_limit import memory_limit
from headrace.server.access.networks import Networks, PrivateNetworks, asker
from headrace.server.hosting import ALONE, Hosting
from headrace.server.plugins import plugin_sources
from headrace.server.repository.mirror import Mirror
from headrace.server.repository.remote import StoreAway
from headrace.server.repository.repository import Poller, Repository
from headrace.server.repository.startup import Startup
from headrace.server.services.health import HealthReporter
from headrace.server.serving.catalogue import Catalogue
from headrace.server.settings.option import read_budget
from headrace.server.settings.settings import Settings
from headrace.server.state import StateDirectory
from headrace.server.storage import (
    lock_state,
    network_cache,
    repository_files,
    repository_mirror,
    signing_key,
    usable,
    weight_files,
)
from headrace.server.tracing.start import start_tracing

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 30.0
"""For how long the start waits for the store of the model repository."""
_AWAY = "the model repository cannot be read; the log says why"


class ServerCore:
    """The core, the networks of the start and of the repository, and their health.

    Belongs to the thread of the event loop on which it is made.

    Attributes:
        unready: why the server takes no work. None if it is ready. Any thread may read it.
        mirror: the copy of the model repository; None if that is no store's.

    Raises:
        HeadraceError: a setting, a folder or a plugin cannot be used.
    """

    def __init__(self, settings: Settings, hosting: Hosting = ALONE) -> None:
        limits = Limits(model_bytes=settings.max_model_bytes)
        self._state: StateDirectory | None = None
        self._state_lock: int | None = None
        if settings.state_dir is not None:
            self._state_lock = lock_state(settings.state_dir)
            with usable("state_dir"):
                self._state = StateDirectory(settings.state_dir, limits)
        key = signing_key(settings) if hosting.key is None else hosting.key
        self.tracing = start_tracing(settings)
        sources = plugin_sources(settings)
        cache = network_cache(settings, key)
        self.core = Core(
            sources,
            blob_key=key,
            max_networks=settings.max_networks,
            of_owner=OwnerLimits(
                settings.max_networks_per_client, settings.max_model_bytes_per_client
            ),
            limits=limits,
            store=hosting.store or self._state,
            cache=cache,
            weights=weight_files(settings, key, cache),
            readers=LoopReaders(asyncio.get_running_loop()),
            folder=self._state.kept if self._state is not None else None,
            isolate_devices=settings.isolate_devices,
            max_state_bytes=settings.max_state_bytes,
            max_response_cache_bytes=settings.max_response_cache_bytes,
            max_load_seconds=settings.max_load_seconds or math.inf,
            budget=memory_budget(settings.memory_budget, [each.device for each in sources]),
            clients_networks_leave=settings.evict_client_networks,
            asker=partial(asker, settings.operators if settings.private_networks else None),
            **({"load_span": self.tracing.begin_load} if self.tracing else {}),
        )
        self.networks = (
            PrivateNetworks(self.core.networks, settings.operators)
            if settings.private_networks
            else Networks(self.core.networks)
        )
        self.core.networks.cold.ended = self.network_changed
        self.core.idle.unloaded = self.network_changed
        self.unready: str | None = "starting"
        self.health = HealthReporter(self.networks)
        self._elsewhere = hosting.elsewhere
        self._loop = asyncio.get_running_loop()
        self.mirror = repository_mirror(settings)
        files = repository_files(settings, limits, self.mirror, self.core.models)
        self.repository = Repository(self.core, files, self.network_changed)
        self.catalogue = Catalogue(self.core, self.network_changed)
        seconds = settings.repository_poll_seconds
        self._poller = Poller(self.repository, seconds, self.mirror, self._repository_came)
        self._startup = Startup(
            self.core,
            self._state,
            self.repository,
            self.network_changed,
            private_networks=settings.private_networks,
        )

    async def load(self) -> None:
        """Loads the networks of the start, and then reports that the server is ready.

        Raises:
            InvalidArgument: the model repository cannot be read, or its store refuses the server.
        """
        mirror = self.mirror
        has_copies = mirror is not None and mirror.has_networks  # of an earlier run
        behind = mirror is not None and not await self._is_copied(mirror)
        await self._startup.load()
        self.unready = _AWAY
        if not behind or has_copies:
            self._ready()
        self._poller.start(behind=behind)

    async def _is_copied(self, mirror: Mirror) -> bool:
        """Copies the repository from its store. If the store is away, the server starts without
        that, or with the copies of an earlier run, and the poller looks again."""
        self.unready = "copying the model repository"  # strangers read it: no address
        has_copies = mirror.has_networks
        looked = asyncio.wrap_future(mirror.begin())
        try:
            await asyncio.wait_for(asyncio.shield(looked), _LOOK_SECONDS)
        except TimeoutError:
            looked.add_done_callback(asyncio.Future.exception)  # the poller will tell it
            why = f"{mirror.address} has not been copied in {_LOOK_SECONDS:g} seconds"
        except OSError as error:
            if not (isinstance(error, StoreAway | BlockingIOError) or has_copies):
                with usable("model_repository"):
                    raise
            why = error.strerror or type(error).__name__
        else:
            return True
        without = "with the copies of an earlier run" if has_copies else "without it"
        _log.error("%s; the server starts %s and goes on trying", why, without)
        return False

    def _repository_came(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._ready)

    def _ready(self) -> None:
        if self.unready == _AWAY:  # not if it is shutting down
            self.unready = None
            self.health.ready()

    def stop(self, deadline: float) -> bool:
        """Unloads the networks and ends the devices. Any thread may call this, once.

        Returns:
            Whether a thread still waits for the store of the model repository.

        Args:
            deadline: when to give up, in seconds of the monotonic clock.
        """
        self._poller.stop()
        self.core.stop(deadline)
        return self.repository.stop()

    def close(self) -> None:
        """Leaves the state directory to another server."""
        if self._state_lock is not None:
            os.close(self._state_lock)

    def network_changed(self, name: str) -> None:
        """Updates the health of a network, and of those that run it. Any thread may call this."""

        def look() -> None:
            for each in self._with_readers(name):
                self._report(each)

        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(look)

    def _report(self, name: str) -> None:
        states = {_state(each) for each in self.core.networks.versions(name)}
        if self._elsewhere is not None and self._elsewhere.serves(name):
            states = {NetworkState.READY}
        self.health.network_is(name, states)

    def _with_readers(self, name: str) -> list[str]:
        """The network and those that run it, at any depth."""
        # Each executable is read once: it may be closed meanwhile.
        loaded = ((each.key.name, each.executable) for each in self.core.networks.runners())
        runs = [
            (reader, {run for run, _ in executable.runs})
            for reader, executable in loaded
            if executable is not None
        ]
        found = [name]
        for each in found:
            found += {reader for reader, names in runs if each in names and reader not in found}
        return found


def _state(entry: NetworkEntry) -> NetworkState:
    """The state of a version; one that lacks a network that it runs counts as failed."""
    executable = entry.executable
    lacks = executable is not None and bool(executable.unready())
    return NetworkState.FAILED if lacks and entry.state is NetworkState.READY else entry.state


def memory_budget(text: str, devices: Collection[str]) -> MemoryBudget:
    """The budget that a setting gives.

    Args:
        devices: those that the server has.

    Raises:
        NotFound: it names another device.
        FailedPrecondition: it is a part of the memory, and the system does not tell how much there
            is.
    """
    said = read_budget(text)
    if isinstance(said, dict):
        for device in said:
            if device not in devices:
                raise NotFound.unknown("device", device, devices, field="memory_budget")
        return MemoryBudget(said)
    memory = memory_limit()
    if memory is None:
        raise FailedPrecondition(
            "the system does not tell its memory; give a size for each device, as CPU=8GiB",
            field="memory_budget",
        )
    return MemoryBudget({SHARED: int(memory.limit * said)})


class LoopReaders:
    """The `Readers` of an event loop. It is made on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()

    def add(self, descriptor: int, readable: Callable[[], None]) -> bool:
        with suppress(RuntimeError):  # the loop is closed
            if threading.get_ident() == self._thread:
                self._loop.add_reader(descriptor, readable)
            else:
                self._loop.call_soon_threadsafe(self._loop.add_reader, descriptor, readable)
            return True
        return False

    def remove(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
