"""Loads the networks that a server has from its start.

They come from the state directory, with the settings there, and from the model repository. A
network that cannot be loaded is listed as failed, with the reason. The others still load. A network
whose device was down, or that failed for another reason that may pass, is tried again when a device
is up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.state import DeviceEvent, DeviceState
from headrace.runtime.errors import HeadraceError, Internal, NotLoaded, StillLoading, may_pass
from headrace.runtime.loading.entry import NetworkKey, NetworkState, Residence, owner_of
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


@dataclass(eq=False, slots=True)
class _Kept:
    """A client's network in the state directory.

    Attributes:
        begin: begins its loads.
        owner: as `NetworkEntry`.
        reason: why it was not loaded the last time.
    """

    request: LoadRequest
    begin: Callable[[], list[Future[NetworkEntry]]]
    owner: object = None
    reason: str = ""


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
        self._failed: dict[NetworkKey, tuple[_Kept, bool]] = {}  # which may be loaded later
        self._device_came = False
        self._retrying: asyncio.Future[None] | None = None

    async def load(self) -> None:
        """Loads all networks, and returns when each is loaded or has failed.

        Raises:
            InvalidArgument: the model repository cannot be read.
        """
        begun = await asyncio.to_thread(self._begin_all)
        await _all_ended(begun)
        await self._load_failed()
        self._core.states.subscribe(partial(self._device_is, asyncio.get_running_loop()))

    async def _load_failed(self) -> None:
        """Loads what may be loaded now: the networks of pipelines are there, or a device is up."""
        ready = -1
        while ready < (ready := self._ready()):  # more may be loaded after another round
            await _all_ended(await asyncio.to_thread(self._begin_failed))
        lacking = [kept for kept, lacks_cold in [*self._failed.values()] if lacks_cold]
        await asyncio.gather(*map(self._load_steps_too, lacking), return_exceptions=True)

    def _device_is(self, loop: asyncio.AbstractEventLoop, event: DeviceEvent) -> None:
        if event.state is DeviceState.UP:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._retry)

    def _retry(self) -> None:
        self._device_came = True
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.ensure_future(self._retry_all())

    async def _retry_all(self) -> None:
        while self._device_came:
            self._device_came = False
            await self._load_failed()

    def _begin_all(self) -> list[Future[NetworkEntry]]:
        begun: list[Future[NetworkEntry]] = []
        shares: dict[str, dict[str, int]] = {}
        shadows: dict[str, Shadow] = {}
        if self._state is not None:
            self._set_up(self._state)
            shares, shadows = self._state.shares(), self._state.shadows()
            networks = self._state.networks()
            for name in self._loadable(networks):
                own = networks[name], shares.pop(name, {}), shadows.pop(name, None)
                with asking(owner_as_asker(owner_of(name))):
                    begun += self._load_kept(self._state, name, *own)
        with usable("model_repository"):
            begun += self._repository.own.start(shares, shadows)
        return begun

    def _ready(self) -> int:
        """How many networks are loaded."""
        return sum(each.state is NetworkState.READY for each in self._core.networks.entries())

    def _begin_failed(self) -> list[Future[NetworkEntry]]:
        """Begins the loads that failed for a reason that may have passed."""
        again: dict[_Kept, None] = {}  # in order
        for key in [*self._failed]:
            kept, _ = self._failed.pop(key)
            if any(each.key == key for each in self._core.networks.versions(key.name)):
                again[kept] = None  # nobody has unloaded or replaced it
        begun = [load for kept in again for load in self._begin(kept)]
        return begun + self._repository.own.retry()

    async def _load_steps_too(self, kept: _Kept) -> None:
        """Loads a client's pipeline after networks of its steps that are known and not loaded."""

        async def load() -> NetworkEntry:
            (begun,) = await asyncio.to_thread(self._begin, kept)
            return await asyncio.wrap_future(begun)

        await when_loaded(load)

    def _begin(self, kept: _Kept) -> list[Future[NetworkEntry]]:
        """Loads a client's network, with the limits that it had for that client."""
        try:
            with asking(owner_as_asker(owner_of(kept.request.name))):
                begun = kept.begin()
        except HeadraceError as error:
            self._cannot_begin(kept, error)
            return []
        for load in begun:
            load.add_done_callback(partial(self._ended, kept))
        return begun

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
        self,
        state: StateDirectory,
        name: str,
        versions: Iterable[str],
        shares: Mapping[str, int],
        shadow: Shadow | None,
    ) -> list[Future[NetworkEntry]]:
        begun: list[Future[NetworkEntry]] = []
        kept = {version: WantedVersion(version) for version in versions}
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
        return begun

    def _load_version(
        self, state: StateDirectory, name: str, version: str, owner: object
    ) -> list[Future[NetworkEntry]]:
        request = LoadRequest(name, _DEVICE, version=version)
        try:
            kept = state.network(name, version)
            if isinstance(kept, Reference):
                device = DeviceName.parse(kept.device) if kept.device else _DEVICE
                request = LoadRequest(name, device, reference=kept)
                begin = partial(self._repository.load, name, kept, replace=True, on_disk=True)
                return self._begin(_Kept(request, begin))
            request, model = kept
            read = partial(
                self._core.models.from_file, model, model.parent, spooled=True, root=None
            )
            if request.device.type != DEVICE and self._core.is_budgeted(request.device):
                self._know(request, read, owner)
                return []
        except HeadraceError as error:
            self._cannot_begin(_Kept(request, list, owner), error)
            return []

        def load() -> list[Future[NetworkEntry]]:
            return [self._core.load_network(request, read, on_disk=True, owner=owner)]

        if request.device.type != DEVICE:
            return self._begin(_Kept(request, load, owner))
        # The name is the client's meanwhile. An owner may give another reason later.
        owner = owner or object()
        waits = StillLoading("the networks of its steps are being loaded")
        self._cannot_begin(_Kept(request, load, owner), waits)
        return []

    def _know(self, request: LoadRequest, read: Callable[[], Network], owner: object) -> None:
        """Lists a client's network as known, so that the start does not wait for its load. It is
        loaded soon, and stays, unless it would make room for others."""
        leaves = self._core.clients_networks_leave
        residence = Residence(pinned=not leaves, of_client=True)
        known = self._core.know_network(request, read, owner=owner, residence=residence)
        if not leaves:
            self._core.networks.cold.load(known)
        self._changed(request.name)

    def _cannot_begin(self, kept: _Kept, error: HeadraceError) -> None:
        with suppress(HeadraceError):  # the name may be invalid, or a client's network has it
            self._core.life.list_failed(kept.request, text_of(error), kept.owner)
        self._has_failed(kept, error)

    def _ended(self, kept: _Kept, load: Future[NetworkEntry]) -> None:
        error = error_of(load)
        if error is None:
            self._changed(kept.request.name)
        else:
            self._has_failed(kept, error)

    def _has_failed(self, kept: _Kept, error: BaseException) -> None:
        """Tells why a network was not loaded, and notes it if that may pass."""
        request, reason = kept.request, text_of(error)
        for entry in self._core.networks.versions(request.name) if may_pass(error) else ():
            is_its = request.reference is not None or entry.key.version == request.version
            if is_its and entry.state is NetworkState.FAILED:
                self._failed[entry.key] = kept, isinstance(error, NotLoaded)
        if isinstance(error, StillLoading):
            _log.debug("network %s is loaded after those of its steps: %s", request.name, error)
        elif not isinstance(error, HeadraceError) or isinstance(error, Internal):
            log_internal_error(error, where=f"loading {request.name}")
        elif reason != kept.reason:
            _log.error("network %s was not loaded: %s", request.name, reason)
        kept.reason = reason
        self._changed(request.name)


async def _all_ended(loads: Iterable[Future[NetworkEntry]]) -> None:
    await asyncio.gather(*map(asyncio.wrap_future, loads), return_exceptions=True)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except HeadraceError as error:
        _log.error("%s failed: %s", what, error)
