"""Starts and stops one server."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from headrace.runtime.network.onnx_inference import infer_apart, stop_apart
from headrace.server.access.watched import Watcher
from headrace.server.addresses import check_address, check_exposure
from headrace.server.backend import ServerCore
from headrace.server.hosting import ALONE, Hosting
from headrace.server.listeners import Addresses, Listeners
from headrace.server.settings.settings import Settings
from headrace.server.transport.tls import server_tls

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 0.2
_UNLOAD_SECONDS = 2.0
_THREADS = 64
"""Most of asyncio's pool: more than may wait for the workers of two devices that hang."""


class App:
    """A server on the running event loop.

    At the start, the app checks that the addresses are free and loads the plugins. Then gRPC and
    HTTP listen, and health says NOT_SERVING. Then the networks of the state directory and of the
    repository load, and health says SERVING. At the stop, health says NOT_SERVING, and the server
    refuses new work. Work in flight finishes within the grace period. Then streams end, gRPC
    stops, networks unload, and the threads end.

    Attributes:
        backend: the devices and the networks.

    Args:
        hosting: what the server takes from where it runs.

    Attributes:
        failed: whether the server stopped because a port was lost.
        stuck: whether the server stopped while a thread was still loading or freeing a network, or
            waiting for a store. Python does not end before that thread does.

    Raises:
        HeadraceError: a setting cannot be used.
    """

    def __init__(self, settings: Settings, hosting: Hosting = ALONE) -> None:
        check_exposure(settings)
        if not settings.unix_socket_only:
            check_address("port", settings.host, settings.port)
        check_address("http_port", settings.http_host, settings.http_port)
        self._grace = settings.grace_seconds
        self._hurried = asyncio.Event()
        self.failed = False
        self.stuck = False
        self._watcher = Watcher()
        tls = server_tls(settings, self._watcher)
        self.backend = ServerCore(settings, hosting)
        self._listeners = Listeners(settings, tls, self._watcher, self.backend, hosting)

    async def start(self) -> Addresses:
        """Listens, loads the networks of the start, and then reports that the server is ready."""
        infer_apart()  # networks come from strangers
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="asyncio")
        asyncio.get_running_loop().set_default_executor(pool)
        self._watcher.start()
        self.backend.health.start()
        addresses = await self._listeners.start()
        await self.backend.load()
        return addresses

    async def run(self, on_ready: Callable[[Addresses], None]) -> None:
        """Serves until SIGTERM or SIGINT, then stops; a second one ends the grace period."""
        stop = asyncio.Event()

        def signalled() -> None:
            (self._hurried if stop.is_set() else stop).set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled)
        starting, stopping = asyncio.create_task(self.start()), asyncio.create_task(stop.wait())
        lost: asyncio.Task[None] | None = None
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                on_ready(starting.result())
                lost = asyncio.create_task(self._listeners.lost())
                await asyncio.wait((stopping, lost), return_when=asyncio.FIRST_COMPLETED)
                self.failed = lost.done()
        finally:
            if lost is not None:
                lost.cancel()
            starting.cancel()  # otherwise loads in progress would delay the stop
            await asyncio.gather(starting, return_exceptions=True)
            # A failed start stops too: gRPC's threads may crash a process that ends around them.
            await self.stop()

    async def stop(self, grace: float = math.inf) -> None:
        """Drains and stops. Work that still runs after the grace period is cancelled.

        Args:
            grace: a shorter grace period than the settings', in seconds.
        """
        # Both ports refuse new work before a probe can tell that the server is shutting down.
        self._listeners.refuse()
        self.backend.unready = "shutting down"
        self.backend.health.drain()
        grace = min(grace, self._grace)
        _log.info("draining for at most %g seconds; a second signal ends that at once", grace)
        deadline = time.monotonic() + grace
        idle = asyncio.create_task(self._listeners.drain())
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
        with suppress(TimeoutError):
            await asyncio.wait_for(self._listeners.end_calls(), max(_CLOSE_SECONDS, left))
        await self._listeners.close_front_end(_CLOSE_SECONDS)
        await asyncio.to_thread(self._watcher.stop)
        deadline = max(deadline, time.monotonic() + _UNLOAD_SECONDS)
        unloading = asyncio.create_task(asyncio.to_thread(self.backend.stop, deadline))
        await asyncio.wait((unloading,), timeout=deadline - time.monotonic() + _UNLOAD_SECONDS)
        self.stuck = not unloading.done() or unloading.result()
        if self.stuck:
            _log.warning(
                "a network is still being loaded, copied or freed; the process ends without that"
            )
        await asyncio.to_thread(self._listeners.close)
        if self.backend.tracing:
            await asyncio.to_thread(self.backend.tracing.close, deadline - time.monotonic())
        self.backend.close()
        await asyncio.to_thread(stop_apart)
        _log.info("stopped")
