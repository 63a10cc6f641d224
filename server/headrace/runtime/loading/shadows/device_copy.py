"""A network on its shadow's device."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import Cancelled, NotFound
from headrace.runtime.loading.entry import USUAL, NetworkEntry, plain_name
from headrace.runtime.loading.shadows.shadow import copy_name
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import Asker
from headrace.runtime.transform.options import LoadRequest


class DeviceCopy:
    """Loads a network a second time, and again after another one has taken its place. Belongs to
    the thread of the shadows after the first load.

    Args:
        load: as `Core.load_network`.
        unload: as `NetworkLife.unload`.
        asker: who has set the shadow.

    Attributes:
        name: the copy's full name.
        source: the network that it was loaded from; None before.
    """

    def __init__(
        self,
        load: Callable[..., Future[NetworkEntry]],
        unload: Callable[..., object],
        name: str,
        device: str,
        asker: Asker,
    ) -> None:
        self.name = copy_name(name)
        self.source: NetworkEntry | None = None
        self._device = device
        self._load_network = load
        self._unload_network = unload
        self._asker = asker
        self._owner = object()
        self._load: Future[NetworkEntry] | None = None
        self._ended = False

    @property
    def is_loading(self) -> bool:
        return self._load is not None and not self._load.done()

    def load(self, entry: NetworkEntry) -> Future[NetworkEntry]:
        """Raises as `Core.load_network`."""

        def read() -> Network:
            network: Network | None = entry.record.network
            if network is None:
                raise Cancelled(f"network {plain_name(entry.key.name)!r} was unloaded meanwhile")
            return network

        asked: LoadRequest = entry.record.request
        request = replace(
            asked,
            name=self.name,
            version="1",
            device=DeviceName.parse(self._device, field="device"),
            config={},
            options=replace(asked.options, affinities={}, members=()),
            reference=None,
            warm_ups=(),
        )
        self._load = self._load_network(
            request,
            read,
            on_disk=True,
            owner=self._owner,
            residence=USUAL,
            # A stranger's model stays one, whoever sets the shadow, and whichever thread loads it.
            asker=self._asker if entry.tenancy.asker.trusted else entry.tenancy.asker,
        )
        self.source = entry
        self._load.add_done_callback(lambda _: self._unload() if self._ended else None)
        return self._load

    def end(self) -> None:
        """Unloads the copy for good."""
        self._ended = True
        if not self.is_loading:
            self._unload()

    def _unload(self) -> None:
        with suppress(NotFound):  # a client has unloaded it
            self._unload_network(
                self.name, stays=lambda entry: entry.tenancy.owner is not self._owner
            )
