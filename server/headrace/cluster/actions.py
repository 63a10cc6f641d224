"""Changes a replica's core as the desired state says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from headrace.cluster.desired import Value
from headrace.cluster.shared.objects import Objects
from headrace.cluster.store import DEVICE, extension_name, model_name
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.errors import AlreadyExists, HeadraceError, NotFound
from headrace.runtime.loading.entry import NetworkEntry
from headrace.runtime.loading.shadows.shadow import Shadow
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest
from headrace.server.reconcile import (
    ChangeConfig,
    GiveShadow,
    LoadVersion,
    ShareRequests,
    Step,
    UnloadVersion,
)
from headrace.server.services.targets import configure
from headrace.server.serving.catalogue import Catalogue

_log = logging.getLogger(__name__)

_BUSY_SECONDS: Final = 0.1


class Actions:
    """Belongs to the event loop. Work that may take long runs on other threads. The methods raise
    as those of the core.

    Args:
        objects: the store with the models and the extensions.
    """

    def __init__(self, core: Core, catalogue: Catalogue, objects: Objects) -> None:
        self._core = core
        self._catalogue = catalogue
        self._objects = objects
        self._owners: dict[str, object] = {}

    async def change_device(self, key: str, want: Value) -> None:
        """Configures a device, or gives it an extension."""
        if key.startswith(DEVICE):
            device = DeviceName.parse(key.removeprefix(DEVICE))
            await asyncio.to_thread(self._core.set_config, device, want["config"])
        else:
            device = DeviceName.parse(key.split("/")[1])
            await asyncio.to_thread(self._extend, device, want["digest"])

    async def take(self, step: Step, name: str, want: Value | None) -> None:
        """Takes one of the steps of a network to the desired state."""
        match step:
            case LoadVersion(version):
                assert want is not None
                await self._load(name, want["versions"][version], alone=want["alone"])
            case ChangeConfig(version, changes):
                await asyncio.to_thread(self._configure, name, version, changes)
            case UnloadVersion(version):
                with suppress(NotFound):
                    unload = partial(self._core.unload_network, name, version)
                    await self._catalogue.unload(unload)
            case ShareRequests(shares):
                await asyncio.to_thread(self._core.set_traffic, name, shares)
            case GiveShadow(shadow):
                await asyncio.to_thread(self._shadow, name, shadow)

    async def _load(self, name: str, facts: Mapping[str, Any], *, alone: bool) -> None:
        said = LoadRequest.from_json(facts["request"])
        request = replace(said, name=name, config={**said.config, **facts["config"]})
        owner = None if alone else self._owners.setdefault(name, object())
        read = partial(self._read, facts["model"])

        def begin() -> list[Future[NetworkEntry]]:
            return [self._core.load_network(request, read, replace=True, on_disk=True, owner=owner)]

        while True:
            try:
                await self._catalogue.load(name, begin)
                break
            except AlreadyExists:  # a client loads it here, and finds that it is too late
                await asyncio.sleep(_BUSY_SECONDS)

    def _configure(self, name: str, version: str, changes: Mapping[str, str]) -> None:
        entry = self._core.networks.acquire(name, version)
        try:
            configure(self._core, entry, changes, None)
        finally:
            self._core.networks.release(entry)

    def _shadow(self, name: str, shadow: Shadow) -> None:
        try:
            self._core.shadows.set(name, shadow)
        except HeadraceError as error:  # the network serves all the same
            _log.error("network %s has no shadow: %s", name, error)

    def _extend(self, device: DeviceName, digest: str) -> None:
        self._core.add_extension(device, self._objects.read(extension_name(digest)))

    def _read(self, digest: str) -> Network:
        data = self._objects.read(model_name(digest))
        return self._core.models.from_bytes(data)
