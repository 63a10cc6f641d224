"""Builds the parts of one server in order, starts them, and stops them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import grpc

from headrace.runtime.core import Core
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.table import OwnerLimits
from headrace.runtime.metrics.families import CONNECTIONS
from headrace.runtime.metrics.series import SeriesSnapshot, Snapshot
from headrace.server.access.access import Access
from headrace.server.access.identity import Role
from headrace.server.access.networks import Networks, PrivateNetworks
from headrace.server.access.watched import Watcher
from headrace.server.addresses import check_address, check_exposure, shown_address
from headrace.server.http.application import Application
from headrace.server.http.metrics import make_registry, memory_series
from headrace.server.http.operations import operations_routes
from headrace.server.http.page.routes import page_routes
from headrace.server.http.rest.rest import Rest
from headrace.server.http.server import HttpServer
from headrace.server.plugins import plugin_sources
from headrace.server.processes.front_ends import FrontEnds
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.poller import Poller
from headrace.server.repository.repository import Repository
from headrace.server.repository.startup import Startup
from headrace.server.request_log import RequestLog
from headrace.server.services.completion_sink import CompletionSink
from headrace.server.services.engine import Servicer
from headrace.server.services.health import HEALTH, SERVICE, HealthReporter
from headrace.server.services.infer_stream import InferStreams
from headrace.server.services.inference import Inference
from headrace.server.services.methods import Services, all_methods, behind, register
from headrace.server.services.open_inference.inference import OpenInference
from headrace.server.services.open_inference.loading import ModelRepository
from headrace.server.services.open_inference.models import Models
from headrace.server.services.open_inference.regions import RegionMethods
from headrace.server.services.open_inference.service import SERVICE as OPEN_INFERENCE
from headrace.server.services.open_inference.service import OpenInferenceService
from headrace.server.services.open_inference.stream import ModelStreams
from headrace.server.services.reflection import ReflectionService
from headrace.server.services.shared_tensors import SharedMemoryService
from headrace.server.services.uploads import Uploads
from headrace.server.settings.settings import Settings
from headrace.server.shared_memory.regions import Regions
from headrace.server.shared_memory.users import Users
from headrace.server.state import StateDirectory
from headrace.server.status.errors import RecentErrors
from headrace.server.status.status import READY, Status, facts_of
from headrace.server.storage import lock_state, network_cache, signing_key, usable
from headrace.server.tracing.start import shown_host, start_tracing
from headrace.server.transport.boundary import Boundary
from headrace.server.transport.connections import cut_connections
from headrace.server.transport.limits import channel_options, strangers
from headrace.server.transport.tls import server_tls

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 0.2
_UNLOAD_SECONDS = 2.0


class Addresses(NamedTuple):
    grpc: str
    http: str


class App:
    """A server on the running event loop.

    At the start, the app checks that the addresses are free and loads the plugins. Then gRPC and
    HTTP listen, and health says NOT_SERVING. Then the networks of the state directory and of the
    repository load, and health says SERVING. At the stop, health says NOT_SERVING, and the server
    refuses new work. Work in flight finishes within the grace period. Then streams end, gRPC
    stops, networks unload, and the threads end.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        check_exposure(settings)
        check_address("port", settings.host, settings.port)
        check_address("http_port", settings.http_host, settings.http_port)
        self._watcher = Watcher()
        self._tls = server_tls(settings, self._watcher)
        limits = Limits(model_bytes=settings.max_model_bytes)
        self._limits = limits
        self._state: StateDirectory | None = None
        self._state_lock = None
        if settings.state_dir is not None:
            self._state_lock = lock_state(settings.state_dir)
            with usable("state_dir"):
                self._state = StateDirectory(settings.state_dir, limits)
        key = signing_key(settings)
        self._tracing = start_tracing(settings)
        self.core = Core(
            plugin_sources(settings),
            blob_key=key,
            max_networks=settings.max_networks,
            of_owner=OwnerLimits(
                settings.max_networks_per_client, settings.max_model_bytes_per_client
            ),
            limits=limits,
            store=self._state,
            cache=network_cache(settings, key),
            folder=self._state.kept if self._state is not None else None,
            isolate_devices=settings.isolate_devices,
            max_state_bytes=settings.max_state_bytes,
            **({"load_span": self._tracing.begin_load} if self._tracing else {}),
        )
        self._networks = (
            PrivateNetworks(self.core.networks, settings.operators)
            if settings.private_networks
            else Networks(self.core.networks)
        )
        upload_limits = settings.max_uploads_bytes, settings.max_model_bytes_per_client
        self._uploads = Uploads(settings.max_model_bytes, *upload_limits)
        self._unready: str | None = "starting"
        self._hurried = asyncio.Event()
        self._port: int | None = None  # gRPC's port, once it is open
        self._health = HealthReporter(self._networks)
        self._loop = asyncio.get_running_loop()
        files = RepositoryFiles(settings.model_repository, limits)
        self._repository = Repository(self.core, files, self._network_changed)
        self._poller = Poller(self._repository, settings.repository_poll_seconds)
        self._startup = Startup(
            self.core,
            self._state,
            self._repository,
            self._network_changed,
            private_networks=settings.private_networks,
        )
        self._reflection = ReflectionService([SERVICE, OPEN_INFERENCE, HEALTH])
        self._access = Access(settings, self._watcher, self.core.counters)
        entrance = self._access.entrance()
        self._strangers = strangers(settings, checks=entrance is not None)
        errors = RecentErrors()
        log = RequestLog(settings.slow_request_seconds, self.core.networks, errors.note)
        self._boundary = Boundary(
            *(self.core.counters, settings.max_concurrent_rpcs, entrance, self._strangers.met),
            *(log, self._tracing),
        )
        self._regions = Regions(
            allowed=settings.allow_client_shared_memory,
            max_bytes=settings.max_shared_memory_bytes,
        )
        shared_memory = SharedMemoryService(self._regions, Users(), self._networks)
        sink = CompletionSink(asyncio.get_running_loop())
        self._inference = Inference(self._networks, sink, shared_memory)
        self._models = Models(
            self.core,
            self._networks,
            lambda: self._unready,
            shared_memory=settings.allow_client_shared_memory,
        )
        models = ModelRepository(self.core, self._networks, self._repository)
        opened = OpenInferenceService(
            self._models,
            OpenInference(self._networks, sink, self._regions),
            models,
            RegionMethods(self._regions),
            shared_memory.caller,
        )
        self._streams = InferStreams(
            self._inference,
            self._boundary,
            settings.max_streams_in_flight,
            settings.max_stream_bytes,
        )
        self._model_streams = ModelStreams(
            opened.infer_on_stream,
            self._boundary,
            settings.max_streams_in_flight,
            self._streams.memory,
        )
        self._server = grpc.aio.server(options=channel_options(settings))
        self._status = Status(
            *(self.core, self._networks, self._repository, errors, facts_of(settings)),
            state=lambda: self._unready or READY,
            addresses=lambda: (shown_address(settings.host, self._port or 0), self._http.address),
            certificate=self._tls.snapshot if self._tls else tuple,
        )
        services = Services(
            Servicer(self.core, self._networks, self._uploads, self._repository, self._health),
            self._inference,
            self._streams,
            shared_memory,
            opened,
            self._model_streams,
            *(self._health.service, self._reflection, self._status.text),
        )
        registration = Role.INFER if settings.private_networks else Role.MANAGE
        methods = behind(self._boundary, all_methods(services, self._boundary, registration))
        self._front_ends: FrontEnds | None = None
        if settings.processes > 1:
            self._front_ends = FrontEnds(settings, methods, settings.processes)
        else:
            register(self._server, methods)
        rest = Rest(
            *(self._networks, self._models, models, self._regions),
            *(settings.max_message_bytes, registration),
        )
        probes = operations_routes(
            make_registry(
                self.core.counters,
                self.core.devices_up,
                self._networks,
                log.snapshot,
                self.core.device_outages,
                self._connections,
                memory_series,
                *([self._tls.snapshot] if self._tls else []),
            ),
            lambda: self._unready,
            self._networks.failed,
            open_metrics=settings.open_metrics,
        )
        self._application = Application(
            [*probes, *page_routes(self._status), *rest.probes],
            *(self.core.counters, rest.routes, rest.lifespan),
            *(self._access.entrance(), log, self._tracing),
        )
        self._http = HttpServer(
            settings.http_host,
            settings.http_port,
            self._application,
            max_connections=settings.max_concurrent_rpcs,
            tls=self._tls.context if self._tls else None,
        )

    async def start(self) -> Addresses:
        """Listens, loads the networks of the start, and then reports that the server is ready."""
        settings = self._settings
        self._watcher.start()
        self._health.start()
        address = shown_address(settings.host, settings.port)
        try:
            if self._front_ends is not None:
                port = await self._front_ends.start()
            elif self._tls:
                port = self._server.add_secure_port(address, self._tls.credentials())
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise InvalidArgument(
                f"cannot listen on {address}: another server is there by now", field="port"
            ) from error
        with usable("http_port"):
            self._http.start()
        self._port = port
        if self._tracing:
            self._tracing.address = shown_host(settings.host), port
        if self._front_ends is None:
            await self._server.start()
            self._strangers.start(port)
        await self._startup.load()
        self._poller.start()
        self._unready = None
        self._health.ready()
        return Addresses(shown_address(settings.host, port), self._http.address)

    async def run(self, on_ready: Callable[[Addresses], None]) -> None:
        """Serves until SIGTERM or SIGINT, then stops; a second one ends the grace period."""
        stop = asyncio.Event()

        def signalled() -> None:
            (self._hurried if stop.is_set() else stop).set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled)
        starting, stopping = asyncio.create_task(self.start()), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                on_ready(starting.result())
                await stopping
        finally:
            starting.cancel()  # otherwise loads in progress would delay the stop
            await asyncio.gather(starting, return_exceptions=True)
            # A failed start stops too: gRPC's threads may crash a process that ends around them.
            await self.stop()

    async def stop(self) -> None:
        """Drains and stops. Work that still runs after the grace period is cancelled."""
        # Both ports refuse new work before a probe can tell that the server is shutting down.
        self._boundary.draining = self._application.draining = True
        self._unready = "shutting down"
        self._health.drain()
        grace = self._settings.grace_seconds
        _log.info("draining for at most %g seconds; a second signal ends that at once", grace)
        deadline = time.monotonic() + grace
        idle = asyncio.gather(
            self._boundary.wait_idle(),
            self._streams.drain(),
            self._model_streams.drain(),
            self._http.call(self._application.drain),
        )
        hurried = asyncio.create_task(self._hurried.wait())
        await asyncio.wait((idle, hurried), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            _log.warning("requests were still in flight after the grace period and are cancelled")
        if hurried.done():
            deadline = time.monotonic()
        left = deadline - time.monotonic()
        idle.cancel()
        hurried.cancel()
        await asyncio.gather(idle, hurried, return_exceptions=True)
        self._health.close()
        self._reflection.close()
        closed = asyncio.gather(
            self._boundary.wait_closed(), self._http.call(self._application.cancel)
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(closed, max(_CLOSE_SECONDS, left))
        if self._front_ends is not None:
            await self._front_ends.stop()
        elif self._port is not None:
            cut_connections(self._port)
        await self._server.stop(_CLOSE_SECONDS)
        await asyncio.to_thread(self._poller.stop)
        await asyncio.to_thread(self._watcher.stop)
        await asyncio.to_thread(self._strangers.stop)
        deadline = max(deadline, time.monotonic() + _UNLOAD_SECONDS)
        await asyncio.get_running_loop().run_in_executor(None, self.core.stop, deadline)
        self._http.stop()
        if self._tracing:
            await asyncio.to_thread(self._tracing.close, deadline - time.monotonic())
        await asyncio.to_thread(self._access.close)
        self._uploads.close()
        self._regions.close()
        if self._state_lock is not None:
            os.close(self._state_lock)
        _log.info("stopped")

    def _connections(self) -> Snapshot:
        counts = {"grpc": self._strangers.connections, "http": self._http.connections}
        return tuple(SeriesSnapshot(CONNECTIONS, (each,), n) for each, n in counts.items())

    def _network_changed(self, name: str) -> None:
        """Updates the health of a network. Any thread may call this."""

        def look() -> None:
            states = {each.state for each in self.core.networks.versions(name)}
            self._health.network_is(name, states)

        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(look)
