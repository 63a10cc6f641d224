"""Builds what a server answers with: its services, behind gRPC's port and the HTTP port."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from headrace.runtime.metrics.families import CONNECTIONS
from headrace.runtime.metrics.series import SeriesSnapshot, Snapshot
from headrace.server.access.access import Access
from headrace.server.access.identity import Role
from headrace.server.access.watched import Watcher
from headrace.server.addresses import shown_address
from headrace.server.backend import ServerCore
from headrace.server.elsewhere import ElsewhereFromLoop
from headrace.server.hosting import ALONE, Hosting, front_end_of
from headrace.server.http.application import Application
from headrace.server.http.metrics import make_registry, memory_series
from headrace.server.http.operations import operations_routes
from headrace.server.http.page.routes import page_routes
from headrace.server.http.rest.rest import Rest
from headrace.server.http.server import HttpServer
from headrace.server.request_log import RequestLog
from headrace.server.services.engine import Servicer
from headrace.server.services.health import HEALTH, SERVICE
from headrace.server.services.infer_stream import InferStreams
from headrace.server.services.inference import Inference
from headrace.server.services.methods import Handlers, Servicers, all_methods
from headrace.server.services.open_inference.loading import ModelRepository
from headrace.server.services.open_inference.messages import part_spans
from headrace.server.services.open_inference.models import Models
from headrace.server.services.open_inference.regions import RegionMethods
from headrace.server.services.open_inference.service import SERVICE as OPEN_INFERENCE
from headrace.server.services.open_inference.service import OpenInferenceService
from headrace.server.services.open_inference.stream import ModelStreams
from headrace.server.services.reflection import ReflectionService
from headrace.server.services.shared_memory import SharedMemoryService
from headrace.server.serving.completion_sink import CompletionSink
from headrace.server.serving.layouts import CallLayouts
from headrace.server.serving.serving import Serving
from headrace.server.settings.settings import Settings
from headrace.server.shared_memory.handover import HandoverSocket
from headrace.server.shared_memory.regions import Regions
from headrace.server.status.errors import RecentErrors
from headrace.server.status.status import READY, StatusReport
from headrace.server.storage import usable
from headrace.server.tracing.start import shown_host
from headrace.server.transport.boundary import Boundary
from headrace.server.transport.tls import ServerTls
from headrace.server.transport.unix_front_end import UnixFrontEnd

_UNREAD_MESSAGES = 8
"""How many messages of the largest size may wait until their callers read them. One connection gets
half."""


class Addresses(NamedTuple):
    """Where a server listens.

    Attributes:
        unix: gRPC's Unix socket, beside `grpc`. Empty if there is none, or if it is `grpc` itself.
    """

    grpc: str
    http: str
    unix: str = ""


class Listeners:
    """gRPC's front end and the HTTP server, with the services behind them.

    Belongs to the thread of the event loop on which it is made.

    Args:
        tls: the certificate of both. None for plain text.
        watcher: looks at the files of access control.
        backend: what they serve.
        hosting: what the server takes from where it runs.

    Raises:
        InvalidArgument: a file of access control cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        tls: ServerTls | None,
        watcher: Watcher,
        backend: ServerCore,
        hosting: Hosting = ALONE,
    ) -> None:
        self._settings = settings
        self._hosting = hosting
        self._backend = backend
        core, networks, tracing = backend.core, backend.networks, backend.tracing
        self._access = Access(settings, watcher, core.counters)
        entrance = self._access.entrance()
        errors = RecentErrors()
        log = RequestLog(settings.slow_request_seconds, core.networks, errors.note)
        limit = settings.max_concurrent_rpcs
        unread_bytes = _UNREAD_MESSAGES * settings.max_message_bytes
        self._boundary = Boundary(
            core.counters, limit, entrance, log, tracing, max_unread_bytes=unread_bytes
        )
        self._regions = Regions(
            allowed=settings.allow_client_shared_memory,
            max_bytes=settings.max_shared_memory_bytes,
        )
        self._port: int | None = None  # gRPC's port, once it is open
        status = StatusReport(
            core,
            networks,
            backend.repository,
            errors,
            settings,
            state=lambda: backend.unready or READY,
            addresses=self._addresses,
            certificate=tls.snapshot if tls else tuple,
        )
        services = self._services(status)
        registration = Role.INFER if settings.private_networks else Role.MANAGE
        methods = hosting.methods(all_methods(services, self._boundary, registration))
        handlers = Handlers(methods, self._boundary)
        self._front_end = hosting.front_end(settings, tls, handlers)
        self._unix = self._unix_front_end(handlers)
        rest = Rest(
            networks,
            self._models,
            self._model_repository,
            self._regions,
            settings.max_message_bytes,
            registration,
            None
            if hosting.elsewhere is None
            else ElsewhereFromLoop(hosting.elsewhere, asyncio.get_running_loop()),
        )
        probes = operations_routes(
            make_registry(
                core.counters,
                core.devices_up,
                networks,
                log.snapshot,
                core.device_outages,
                core.budget_series,
                core.shadows.snapshot,
                self._connections,
                memory_series,
                *([backend.mirror.snapshot] if backend.mirror else []),
                *([tls.snapshot] if tls else []),
            ),
            lambda: backend.unready,
            networks.failed,
            networks.lacking,
            open_metrics=settings.open_metrics,
        )
        self._application = Application(
            [*probes, *page_routes(status), *rest.probes],
            core.counters,
            rest.routes,
            rest.lifespan,
            self._access.entrance(),
            log,
            tracing,
        )
        self._http = HttpServer(
            settings.http_host,
            settings.http_port,
            self._application,
            max_connections=limit,
            tls=tls.context if tls else None,
        )

    def _services(self, status: StatusReport) -> Servicers:
        settings, backend, boundary = self._settings, self._backend, self._boundary
        core, networks, regions = backend.core, backend.networks, self._regions
        sink = CompletionSink(asyncio.get_running_loop())
        serving = Serving(networks, sink, regions, self._hosting.elsewhere)
        inference = Inference(serving)
        in_flight = settings.max_streams_in_flight
        self._streams = InferStreams(
            serving,
            inference.layouts,
            boundary,
            in_flight,
            settings.max_stream_bytes,
            settings.max_message_bytes,
        )
        self._models = Models(
            core,
            networks,
            lambda: backend.unready,
            shared_memory=settings.allow_client_shared_memory,
        )
        self._model_repository = ModelRepository(
            core, networks, backend.repository, backend.catalogue
        )
        layouts = CallLayouts(part_spans)
        opened = OpenInferenceService(
            self._models, serving, self._model_repository, RegionMethods(regions), layouts
        )
        self._model_streams = ModelStreams(
            serving, layouts, boundary, in_flight, self._streams.memory
        )
        self._uploads = self._hosting.uploads(
            settings.max_model_bytes,
            settings.max_uploads_bytes,
            settings.max_model_bytes_per_client,
        )
        self._reflection = ReflectionService([SERVICE, OPEN_INFERENCE, HEALTH])
        return Servicers(
            Servicer(core, networks, self._uploads, backend.repository, backend.catalogue),
            inference,
            self._streams,
            SharedMemoryService(regions, serving),
            opened,
            self._model_streams,
            backend.health.service,
            self._reflection,
            status.text,
        )

    def _unix_front_end(self, handlers: Handlers) -> UnixFrontEnd | None:
        settings = self._settings
        if settings.unix_socket is None:
            return None
        handover = (
            HandoverSocket(self._regions, self._boundary.entrance)
            if settings.allow_client_shared_memory
            else None
        )
        front_end = front_end_of(settings, None, handlers)
        return UnixFrontEnd(settings, settings.unix_socket, front_end, handover)

    async def start(self) -> Addresses:
        """Listens.

        Raises:
            AlreadyExists: another server has the Unix socket.
            InvalidArgument: a port has been taken, or a socket cannot be made.
        """
        if self._unix:
            self._unix.bind()
        if self._front_end:
            self._port = self._front_end.bind()
        with usable("http_port"):
            self._http.start()
        if self._backend.tracing and self._port is not None:
            self._backend.tracing.address = shown_host(self._settings.host), self._port
        for front_end in (self._unix, self._front_end):
            if front_end:
                await front_end.start()
        return self._addresses()

    async def lost(self) -> None:
        """Waits until a port of gRPC takes no more calls although nobody has stopped it."""
        fronts = [front_end for front_end in (self._unix, self._front_end) if front_end]
        waiting = [asyncio.ensure_future(front.lost()) for front in fronts]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def refuse(self) -> None:
        """Refuses new work from now on."""
        self._boundary.draining = self._application.draining = True

    async def drain(self) -> None:
        """Returns when no work is in progress, after `refuse`."""
        await asyncio.gather(
            self._boundary.wait_idle(),
            self._streams.drain(),
            self._model_streams.drain(),
            self._http.call(self._application.drain),
        )

    async def end_calls(self) -> None:
        """Ends the calls that wait for their callers, and cancels what is in progress."""
        self._backend.health.close()
        self._reflection.close()
        await asyncio.gather(
            self._boundary.wait_closed(), self._http.call(self._application.cancel)
        )

    async def close_front_end(self, seconds: float) -> None:
        """Closes gRPC's sockets and connections. The HTTP port still answers probes."""
        await asyncio.gather(
            *(front_end.stop(seconds) for front_end in (self._unix, self._front_end) if front_end)
        )

    def close(self) -> None:
        """Closes the HTTP port and what clients have left behind. It may take seconds. Any thread
        may call this, once."""
        self._http.stop()
        self._access.close()
        self._uploads.close()
        self._regions.close()

    def _addresses(self) -> Addresses:
        unix = self._unix.address if self._unix else ""
        if self._front_end is None:
            return Addresses(unix, self._http.address)
        tcp = shown_address(self._settings.host, self._port or 0)
        return Addresses(tcp, self._http.address, unix)

    def _connections(self) -> Snapshot:
        grpc = sum(
            front_end.connections for front_end in (self._unix, self._front_end) if front_end
        )
        counts = {"grpc": grpc, "http": self._http.connections}
        return tuple(
            SeriesSnapshot(CONNECTIONS, (transport,), n) for transport, n in counts.items()
        )
