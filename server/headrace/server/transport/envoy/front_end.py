"""The front end that Envoy is. It runs inside Envoy's process."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc

from headrace.runtime.errors import InvalidArgument
from headrace.server.settings.settings import Settings
from headrace.server.transport.asgi.application import GrpcApplication
from headrace.server.transport.connections import cut_connections
from headrace.server.transport.envoy.admin import Admin
from headrace.server.transport.envoy.certificates import write_certificate
from headrace.server.transport.envoy.configuration import Paths
from headrace.server.transport.strangers import Strangers
from headrace.server.transport.tls import ServerTls

_OPEN_SECONDS = 30.0
_LOOK_SECONDS = 0.01


class Loaded:
    """What the server has given to Envoy, in this process.

    Attributes:
        folder: that of the files between Envoy and the server. None if this is not Envoy.
        application: answers the calls.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.application: GrpcApplication | None = None


LOADED = Loaded()


class EnvoyFrontEnd:
    """A `FrontEnd` of Envoy. Envoy's threads accept, decrypt and parse; the methods run here.

    Args:
        tls: the certificate. None for plain text.
        handlers: finds the handler of a call.
        strangers: ends connections that nobody wants.

    Raises:
        InvalidArgument: this process is not Envoy.
    """

    def __init__(
        self,
        settings: Settings,
        tls: ServerTls | None,
        handlers: grpc.GenericRpcHandler,
        strangers: Strangers,
    ) -> None:
        if LOADED.folder is None:
            raise InvalidArgument("use `headrace serve` with it", field="front_end")
        paths = Paths(LOADED.folder)
        self._strangers = strangers
        self._admin = Admin(paths.admin)
        self._port: int | None = None
        limit = settings.max_message_bytes
        self._application = GrpcApplication(handlers, largest_request=limit, largest_reply=limit)
        LOADED.application = self._application
        if tls is not None:
            tls.on_change(lambda certificate: write_certificate(certificate, paths))

    @property
    def connections(self) -> int:
        return self._strangers.connections

    async def bind(self) -> int:
        end = time.monotonic() + _OPEN_SECONDS
        while (port := await self._admin.port()) is None:
            if time.monotonic() > end:
                raise InvalidArgument("Envoy does not listen; its log says why", field="port")
            await asyncio.sleep(_LOOK_SECONDS)
        self._port = port
        return port

    async def start(self) -> None:
        assert self._port is not None
        self._strangers.start(self._port)

    async def stop(self, seconds: float) -> None:
        self._application.calls.cancel_all()
        if self._port is not None:
            await self._wait_for_answers(seconds)
            cut_connections(self._port)
        await asyncio.to_thread(self._strangers.stop)

    async def _wait_for_answers(self, seconds: float) -> None:
        """Waits until Envoy has sent what it has got. Its threads are still at it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and await self._admin.calls_open():
            await asyncio.sleep(_LOOK_SECONDS)
