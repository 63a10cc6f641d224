"""What a server has from its start: the state directory's settings and networks, and those of the
model repository.

A network that does not come is listed as failed, with its reason, and stops no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.errors import FailedPrecondition, HeadraceError, Internal, NotFound
from headrace.runtime.loading.registry import NetworkEntry, NetworkState
from headrace.runtime.network.network import Network
from headrace.runtime.system.atomic_file import read_file
from headrace.runtime.transform.options import LoadRequest, Reference
from headrace.server.logs import log_internal_error
from headrace.server.repository import Repository
from headrace.server.services.health import HealthReporter
from headrace.server.state import StateDirectory
from headrace.server.storage import usable

_log = logging.getLogger(__name__)

_DEVICE = DeviceName.parse("CPU")
"""Where a network belongs of which no device is known."""


class Startup:
    """Belongs to the event loop's thread.

    Args:
        state: None if the server keeps nothing.
    """

    def __init__(
        self,
        core: Core,
        state: StateDirectory | None,
        repository: Repository,
        health: HealthReporter,
    ) -> None:
        self._core = core
        self._state = state
        self._repository = repository
        self._health = health

    async def load(self) -> None:
        """Loads them all, and is done when each has come or failed.

        Raises:
            InvalidArgument: the model repository cannot be read.
        """
        with usable("model_repository"):
            offered = self._repository.names()
        loads: dict[str, Future[NetworkEntry] | None] = {}
        if self._state is not None:
            self._set_up(self._state)
            for name in self._state.networks():
                loads[name] = self._load_kept(self._state, name)
        for name in offered:
            if name in loads:
                _log.info(
                    "network %s of the model repository is not loaded: a client loaded another "
                    "network under this name",
                    name,
                )
            else:
                loads[name] = self._load_offered(name)
        begun = {name: asyncio.wrap_future(load) for name, load in loads.items() if load}
        results = await asyncio.gather(*begun.values(), return_exceptions=True)
        for name, result in zip(begun, results, strict=True):
            if isinstance(result, HeadraceError) and not isinstance(result, Internal):
                _log.error("network %s was not loaded: %s", name, result)
            elif isinstance(result, BaseException):
                log_internal_error(result, where=f"loading {name}")
            self._tell_health(name)

    def _set_up(self, state: StateDirectory) -> None:
        for device, config in state.configs():
            with _logged(f"configuring {device}"):
                self._core.set_config(DeviceName.parse(device), config)
        for device, functions in state.extensions():
            with _logged(f"extending {device}"):
                self._core.add_extension(DeviceName.parse(device), functions)

    def _load_kept(self, state: StateDirectory, name: str) -> Future[NetworkEntry] | None:
        request = LoadRequest(name, _DEVICE)
        try:
            kept = state.network(name)
            if not isinstance(kept, Reference):
                request, model = kept
                return self._begin(request, partial(self._read, model))
            if kept.device:
                request = LoadRequest(name, DeviceName.parse(kept.device))
            return self._begin(
                self._repository.load_request(name, kept), self._offered(kept.network)
            )
        except HeadraceError as error:
            self._cannot_begin(request, error)
            return None

    def _load_offered(self, name: str) -> Future[NetworkEntry] | None:
        request = LoadRequest(name, _DEVICE, origin="repository")
        try:
            request = self._repository.request(name)
            return self._begin(request, self._offered(name))
        except HeadraceError as error:
            self._cannot_begin(request, error)
            return None

    def _begin(self, request: LoadRequest, read: Callable[[], Network]) -> Future[NetworkEntry]:
        return self._core.load_network(request, read, on_disk=True)

    def _offered(self, name: str) -> Callable[[], Network]:
        return partial(self._repository.network, name, spooled=True)

    def _read(self, model: Path) -> Network:
        try:
            data = read_file(model)
        except OSError as error:
            raise FailedPrecondition(
                f"its model cannot be read from the state directory: {error.strerror}"
            ) from error
        return Network.from_bytes(data, self._core.limits, spooled=True)

    def _cannot_begin(self, request: LoadRequest, error: HeadraceError) -> None:
        reason = f"{error.field}: {error}" if error.field else str(error)
        _log.error("network %s was not loaded: %s", request.name, reason)
        with suppress(HeadraceError):  # the name may be none for a network, or a client was first
            self._core.list_failed(request, reason)
        self._tell_health(request.name)

    def _tell_health(self, name: str) -> None:
        """Looks at what has the name now: a client may have unloaded or loaded it meanwhile."""
        try:
            state = self._core.networks.find(name).state
        except NotFound:
            return
        if state is NetworkState.READY:
            self._health.network_ready(name)
        elif state is NetworkState.FAILED:
            self._health.network_failed(name)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except HeadraceError as error:
        _log.error("%s failed: %s", what, error)
