"""Loads the networks that a server has from its start.

They come from the state directory, with the settings there, and from the model repository. A
network that cannot be loaded is listed as failed, with the reason. The others still load. Those of
the repository whose device was down are loaded when a device is up again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.state import DeviceEvent, DeviceState
from headrace.runtime.errors import HeadraceError, Internal, NotLoaded, lacks_network
from headrace.runtime.loading.entry import NetworkState, Residence, owner_of
from headrace.runtime.loading.registry import NetworkEntry
from headrace.runtime.loading.shadows.shadow import Shadow
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.description import DEVICE
from headrace.runtime.system.asker import asking
from headrace.runtime.transform.options import LoadRequest, Reference
from headrace.server.access.networks import owner_as_asker
from headrace.server.logs import log_internal_error
from headrace.server.reconcile import (
    NOTHING,
    GiveShadow,
    LoadVersion,
    ShareRequests,
    Want,
    WantedVersion,
    steps,
)
from headrace.server.repository.repository import Repository
from headrace.server.repository.status import error_of, text_of
from headrace.server.serving.presence import when_loaded
from headrace.server.state import StateDirectory
from headrace.server.storage import usable

_log = logging.getLogger(__name__)

_DEVICE = DeviceName.parse("CPU")
"""The device that a network without a known device is listed under."""


class Startup:
    """Loads the networks of a server's start.

    The loads begin on a thread other than the event loop's, because they wait for the disk.

    Args:
        state: None if the server keeps nothing.
        changed: called with the name of a network that was loaded or failed, on any thread.
        private_networks: whether the networks of tenants are loaded. Otherwise they rest in the
            state directory, because all clients would see them.
    """

    def __init__(
        self,
        core: Core,
        state: StateDirectory | None,
        repository: Repository,
        changed: Callable[[str], object],
        *,
        private_networks: bool = False,
    ) -> None:
        self._core = core
        self._private_networks = private_networks
        self._state = state
        self._repository = repository
        self._changed = changed
        self._pipelines: dict[tuple[str, str], tuple[str, LoadRequest, Path, object]] = {}
        self._lack_cold: set[tuple[str, str]] = set()

    async def load(self) -> None:
        """Loads all networks, and returns when each is loaded or has failed.

        Raises:
            InvalidArgument: the model repository cannot be read.
        """
        begun = await asyncio.to_thread(self._begin_all)
        await _all_ended(begun)
        ready = -1
        # The networks of pipelines are there now, or will be after another round.
        while ready < (ready := self._ready()):
            begun = await asyncio.to_thread(self._begin_pipelines)
            await _all_ended(begun)
        lacking = [key for key in self._pipelines if key in self._lack_cold]
        await asyncio.gather(*map(self._load_steps_too, lacking), return_exceptions=True)
        self._core.states.subscribe(partial(self._device_is, asyncio.get_running_loop()))

    def _device_is(self, loop: asyncio.AbstractEventLoop, event: DeviceEvent) -> None:
        if event.state is DeviceState.UP:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(loop.run_in_executor, None, self._repository.retry)

    def _begin_all(self) -> list[Future[NetworkEntry]]:
        begun: list[Future[NetworkEntry]] = []
        shares: dict[str, dict[str, int]] = {}
        shadows: dict[str, Shadow] = {}
        if self._state is not None:
            self._set_up(self._state)
            shares, shadows = self._state.shares(), self._state.shadows()
            for name in self._loadable(self._state.networks()):
                own = shares.pop(name, {}), shadows.pop(name, None)
                with asking(owner_as_asker(owner_of(name))):
                    begun += self._load_kept(self._state, name, *own)
        with usable("model_repository"):
            begun += self._repository.start(shares, shadows)
        return begun

    def _ready(self) -> int:
        """How many networks are loaded."""
        return sum(each.state is NetworkState.READY for each in self._core.networks.entries())

    def _begin_pipelines(self) -> list[Future[NetworkEntry]]:
        """Loads the pipelines that are not loaded: those of clients, and those of the repository
        that failed."""
        begun: list[Future[NetworkEntry]] = []
        for key, (name, request, model, owner) in list(self._pipelines.items()):
            try:
                load = self._load_one(request, model, owner)
            except HeadraceError as error:
                self._pipelines.pop(key)
                self._cannot_begin(request, error, owner)
                continue
            load.add_done_callback(partial(self._pipeline_ended, key))
            load.add_done_callback(partial(self._ended, name))
            begun.append(load)
        return begun + self._repository.retry()

    async def _load_steps_too(self, key: tuple[str, str]) -> None:
        """Loads a client's pipeline after networks of its steps that are known and not loaded."""
        name, request, model, owner = self._pipelines[key]

        async def load() -> NetworkEntry:
            begun = await asyncio.to_thread(self._load_one, request, model, owner)
            begun.add_done_callback(partial(self._ended, name))
            return await asyncio.wrap_future(begun)

        await when_loaded(load)

    def _pipeline_ended(self, key: tuple[str, str], load: Future[NetworkEntry]) -> None:
        error = error_of(load)
        if isinstance(error, NotLoaded):
            self._lack_cold.add(key)
        if not lacks_network(error):
            self._pipelines.pop(key, None)

    def _loadable(self, names: Iterable[str]) -> list[str]:
        loadable = list(names)
        kept = [name for name in loadable if self._private_networks or not owner_of(name)]
        if len(kept) < len(loadable):
            left = len(loadable) - len(kept)
            _log.warning("%d networks of tenants are not loaded; use --private-networks", left)
        return kept

    def _set_up(self, state: StateDirectory) -> None:
        for device, config in state.configs():
            with _logged(f"configuring {device}"):
                self._core.set_config(DeviceName.parse(device), config)
        for device, functions in state.extensions():
            with _logged(f"extending {device}"):
                self._core.add_extension(DeviceName.parse(device), functions)

    def _load_kept(
        self, state: StateDirectory, name: str, shares: Mapping[str, int], shadow: Shadow | None
    ) -> list[Future[NetworkEntry]]:
        begun: list[Future[NetworkEntry]] = []
        kept = {version: WantedVersion(version) for version in state.versions(name)}
        owner = object() if len(kept) > 1 else None
        for step in steps(NOTHING, Want(kept, shares, shadow)):
            match step:
                case LoadVersion(version):
                    begun += self._load_version(state, name, version, owner)
                case ShareRequests():
                    self._core.networks.share(name, shares, ahead=True)
                case GiveShadow(wanted):
                    with _logged(f"giving {name} its shadow"):
                        self._core.shadows.set(name, wanted)
        for load in begun:
            load.add_done_callback(partial(self._ended, name))
        return begun

    def _load_version(
        self, state: StateDirectory, name: str, version: str, owner: object
    ) -> list[Future[NetworkEntry]]:
        request = LoadRequest(name, _DEVICE, version=version)
        try:
            kept = state.network(name, version)
            if isinstance(kept, Reference):
                if kept.device:
                    request = LoadRequest(name, DeviceName.parse(kept.device))
                return self._repository.load(name, kept, on_disk=True)
            request, model = kept
            if request.device.type == DEVICE:
                # The name is the client's meanwhile. An owner may give another reason later.
                owner = owner or object()
                self._core.list_failed(request, "the networks of its steps are being loaded", owner)
                self._pipelines[name, version] = name, request, model, owner
                return []
            if self._core.is_budgeted(request.device):
                self._know(request, partial(self._read, model), owner)
                return []
            return [self._load_one(request, model, owner)]
        except HeadraceError as error:
            self._cannot_begin(request, error, owner)
            return []

    def _load_one(self, request: LoadRequest, model: Path, owner: object) -> Future[NetworkEntry]:
        """Loads a client's network, with the limits that it had for that client."""
        with asking(owner_as_asker(owner_of(request.name))):
            read = partial(self._read, model)
            return self._core.load_network(request, read, on_disk=True, owner=owner)

    def _know(self, request: LoadRequest, read: Callable[[], Network], owner: object) -> None:
        """Lists a client's network as known, so that the start does not wait for its load. It is
        loaded soon, and stays, unless it would make room for others."""
        leaves = self._core.clients_networks_leave
        residence = Residence(pinned=not leaves, of_client=True)
        known = self._core.know_network(request, read, owner=owner, residence=residence)
        if not leaves:
            self._core.networks.cold.load(known)
        self._changed(request.name)

    def _read(self, model: Path) -> Network:
        return self._core.models.from_file(model, model.parent, spooled=True, root=None)

    def _cannot_begin(self, request: LoadRequest, error: HeadraceError, owner: object) -> None:
        reason = text_of(error)
        _log.error("network %s was not loaded: %s", request.name, reason)
        with suppress(HeadraceError):  # the name may be invalid, or a client's network has it
            self._core.list_failed(request, reason, owner)
        self._changed(request.name)

    def _ended(self, name: str, load: Future[NetworkEntry]) -> None:
        error = error_of(load)
        if isinstance(error, NotLoaded):
            _log.debug("network %s is loaded after those of its steps: %s", name, error)
        elif isinstance(error, HeadraceError) and not isinstance(error, Internal):
            _log.error("network %s was not loaded: %s", name, error)
        elif error is not None:
            log_internal_error(error, where=f"loading {name}")
        self._changed(name)


async def _all_ended(loads: Iterable[Future[NetworkEntry]]) -> None:
    await asyncio.gather(*map(asyncio.wrap_future, loads), return_exceptions=True)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except HeadraceError as error:
        _log.error("%s failed: %s", what, error)
