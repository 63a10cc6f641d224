"""One replica of a cluster: a server behind Ray Serve's port, that follows the desired state."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial
from typing import Final

import grpc

from headrace.cluster.actions import Actions
from headrace.cluster.convergence import Convergence
from headrace.cluster.ingress import register
from headrace.cluster.keeping import KeeperClient
from headrace.cluster.members import ReplicaAddress
from headrace.cluster.placement.directory import Directory
from headrace.cluster.placement.forwarding import Forwarder
from headrace.cluster.placement.methods import ForwardingMethods
from headrace.cluster.scaling import LoadMeter
from headrace.cluster.settlement import settling
from headrace.cluster.shared.objects import Objects
from headrace.cluster.shared.uploads import SharedUploads
from headrace.cluster.store import ClusterStore
from headrace.runtime.errors import InvalidArgument
from headrace.server.app import App
from headrace.server.hosting import Hosting
from headrace.server.settings.settings import Settings
from headrace.server.transport.call import Methods
from headrace.server.transport.grpcio import GrpcioHandlers

_log = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 1.0
"""How long closing the server may take, within the time that Serve gives a replica to stop."""

_RELEASE_SHARE: Final = 0.5
"""The part of that time in which other replicas may take over networks."""

_ALONE: Final = {
    "state_dir": "the cluster's store keeps the networks",
    "model_repository": "the cluster's store keeps the networks; load them with a client",
    "ovms_config": "the cluster's store keeps the networks; load them with a client",
    "tls_cert": "Ray Serve's port speaks plain text; put TLS before it",
    "tls_client_ca": "Ray Serve's port speaks plain text; put TLS before it",
    "unix_socket": "Ray Serve opens the port",
    "front_end": "Ray Serve opens the port",
    "allow_client_shared_memory": "a client does not know which replica its call reaches",
}
"""Settings of a server that stands alone, and why a replica refuses them."""


_DEFAULTS: Final = Settings()


def check_settings(settings: Settings) -> None:
    """Checks that a replica can have the settings.

    Raises:
        InvalidArgument: it cannot.
    """
    for name, why in _ALONE.items():
        if getattr(settings, name) != getattr(_DEFAULTS, name):
            raise InvalidArgument(f"a cluster takes no {name}: {why}", field=name)
    if not settings.has_access_control and not settings.allow_insecure:
        raise InvalidArgument(
            "Ray Serve's port is open to other machines, but the cluster has no access control: "
            "give tokens or jwt_jwks, or allow_insecure if something else protects the port",
            field="tokens",
        )


class Replica:
    """Implements `Hosted`. `mount`, `start` and `stop` belong to the event loop of Serve's server.

    Args:
        name, node: of this replica and its machine, for reports.
        key: signs the exports of all replicas.

    Raises:
        InvalidArgument: as `check_settings`.
    """

    def __init__(
        self,
        settings: Settings,
        objects: Objects,
        keeper: KeeperClient,
        key: bytes,
        *,
        name: str,
        node: str,
        host: str = "127.0.0.1",
    ) -> None:
        check_settings(settings)
        self._settings = replace(settings, allow_insecure=True)
        self._objects = objects
        self._keeper = keeper
        self._key = key
        self._name, self._node, self._host = name, node, host
        self._meter = LoadMeter()
        self._app: App | None = None
        self._convergence: Convergence | None = None
        self._forwarding: Forwarder | None = None

    def mount(self, server: grpc.aio.Server) -> None:
        store = ClusterStore(self._objects, self._keeper)
        directory = Directory(self._name)
        forwarding = self._forwarding = Forwarder(directory)
        passing = ForwardingMethods(forwarding)
        hosting = Hosting(
            front_end=lambda _, __, methods: _ServeFrontEnd(server, methods),
            uploads=partial(SharedUploads, self._objects),
            methods=lambda methods: passing(settling(methods, self._keeper)),
            store=store,
            key=self._key,
            elsewhere=forwarding,
        )
        self._app = app = App(self._settings, hosting)
        core = app.backend.core
        directory.here = core.networks
        passing.networks = app.backend.networks
        # Serve does not tell the port that it has opened. Peers get one of their own.
        port = server.add_insecure_port(f"{self._host}:0")
        member = ReplicaAddress(self._name, f"{self._host}:{port}", self._node)
        self._convergence = Convergence(
            Actions(core, app.backend.catalogue, self._objects),
            store,
            self._keeper,
            member,
            directory,
            app.backend.network_changed,
        )

    async def start(self) -> None:
        assert self._app is not None
        assert self._convergence is not None
        began = time.monotonic()
        await self._app.start()
        await self._convergence.start()
        seconds = time.monotonic() - began
        _log.info("replica %s is ready after %.1f s", self._name, seconds)

    async def stop(self, seconds: float) -> None:
        assert self._app is not None
        assert self._convergence is not None
        assert self._forwarding is not None
        deadline = time.monotonic() + seconds - _CLOSE_SECONDS
        await self._convergence.release(seconds * _RELEASE_SHARE)
        await self._convergence.stop()
        await self._app.stop(max(0.0, deadline - time.monotonic()))
        await self._forwarding.close()

    def measure(self) -> dict[str, float]:
        """How busy the replica is. Any thread may call it, one at a time."""
        return self._meter.read(self._app.backend.core.counters.snapshot() if self._app else ())


class _ServeFrontEnd:
    """A `FrontEnd` on the server that Serve has made and will start."""

    def __init__(self, server: grpc.aio.Server, methods: Methods) -> None:
        self._server = server
        register(server, GrpcioHandlers(methods))

    @property
    def connections(self) -> int:
        """gRPC does not tell them."""
        return 0

    def bind(self) -> int:
        return 0

    async def start(self) -> None:
        """Serve starts its server when the replica is ready."""

    async def lost(self) -> None:
        """Serve watches its server itself."""
        await asyncio.get_running_loop().create_future()

    async def stop(self, seconds: float) -> None:
        await type(self._server).stop(self._server, seconds)  # the object's own calls this replica
