"""The engine's side of the front ends' processes: starts them, starts them again, and ends them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.isolation.server.launch import how, import_path, stops_held
from headrace.runtime.system.backoff import Backoff
from headrace.server.processes import frames
from headrace.server.processes.calls import Calls
from headrace.server.processes.frames import Broken, Frame
from headrace.server.processes.link import Link
from headrace.server.processes.orders import Orders
from headrace.server.processes.relay import Row
from headrace.server.services.methods import Served
from headrace.server.settings.settings import Settings

_log = logging.getLogger(__name__)

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0


class FrontEnds:
    """All front ends of one server. Belongs to the event loop's thread.

    A front end that ends is started again. Its calls are cancelled; those of others go on.

    Args:
        methods: what callers may call.
        count: how many front ends there are.
    """

    def __init__(self, settings: Settings, methods: Sequence[Served], count: int) -> None:
        self._settings = settings
        self._methods = methods
        self._count = count
        self._running: dict[int, _FrontEnd] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = False
        self._reserved: socket.socket | None = None

    @property
    def connections(self) -> int:
        """How many connections all front ends have."""
        return sum(each.connections for each in self._running.values())

    async def start(self) -> int:
        """Starts the front ends, and returns their port when all of them listen.

        Raises:
            InvalidArgument: they cannot listen.
        """
        self._reserved = _reserve(self._settings.host, self._settings.port)
        port = self._reserved.getsockname()[1]
        table = [Row(each.path, each.streams, each.reads_one) for each in self._methods]
        orders = Orders(self._settings, port, table).to_json()
        loop = asyncio.get_running_loop()
        ready = [loop.create_future() for _ in range(self._count)]
        self._keepers = [
            loop.create_task(self._keep(number, orders, each), name=f"front-end-{number}")
            for number, each in enumerate(ready)
        ]
        await asyncio.wait_for(asyncio.gather(*ready), _START_SECONDS)
        return int(port)

    async def stop(self) -> None:
        """Ends the front ends, after the callers have the statuses that were sent."""
        self._stopping = True
        for each in self._running.values():
            each.stop()
        if self._keepers:
            _, late = await asyncio.wait(self._keepers, timeout=_STOP_SECONDS)
            for each in self._running.values():
                each.kill()
            for keeper in late:
                keeper.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)
        if self._reserved is not None:
            self._reserved.close()

    async def _keep(self, number: int, orders: bytes, ready: asyncio.Future[None]) -> None:
        """Keeps one front end running until the server stops."""
        backoff = Backoff()
        while True:
            one = self._running[number] = _FrontEnd(
                orders, self._methods, self._settings.max_message_bytes
            )
            try:
                problem = await one.ready
                if problem is not None and not ready.done():
                    ready.set_exception(InvalidArgument(problem, field="port"))
                elif problem is None:
                    backoff.started(time.monotonic())
                    if not ready.done():
                        ready.set_result(None)
                    await one.gone
            finally:
                del self._running[number]
                status = await one.end()
            if self._stopping:
                return
            pause = backoff.died(time.monotonic(), useful=problem is None)
            _log.error("front end %d ended: %s; it starts again", number, how(status))
            await asyncio.sleep(pause)


class _FrontEnd:
    """One process.

    Attributes:
        ready: done when it listens. Its result is None, or says why it does not listen.
        gone: done when the connection to it has ended.
        connections: how many it has.
    """

    def __init__(self, orders: bytes, methods: Sequence[Served], max_message: int) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[str | None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.connections = 0
        self._calls = Calls(methods)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = _launch(theirs.fileno())
        self._link = Link(ours, self._take, self._lost, max_message)
        self._link.send(frames.SETUP, 0, orders)

    def stop(self) -> None:
        self._link.send(frames.STOP, 0)

    def kill(self) -> None:
        self._process.kill()

    async def end(self) -> int:
        """Kills the process if it still runs. Returns its status."""
        self._link.close()
        self._calls.cancel_all()
        with suppress(ProcessLookupError):
            self._process.kill()
        return await asyncio.to_thread(self._process.wait)

    def _take(self, frame: Frame) -> None:
        if frame.kind == frames.SETUP:
            if not self.ready.done():
                self.ready.set_result(_problem(frame.body))
        elif frame.kind == frames.CONNECTIONS:
            self.connections = frames.parse_number(frame.body)
        else:
            self._calls.take(self._link, frame)

    def _lost(self, why: str) -> None:
        _log.debug("a front end has gone: %s", why)
        self._calls.cancel_all()
        if not self.ready.done():
            self.ready.set_result("a front end ended while it started; the log says why")
        if not self.gone.done():
            self.gone.set_result(None)


def _problem(body: bytes) -> str | None:
    try:
        problem = json.loads(body).get("error")
    except (ValueError, RecursionError, AttributeError) as error:
        raise Broken("a front end does not say how it started") from error
    return None if problem is None else str(problem)


def _reserve(host: str, port: int) -> socket.socket:
    """A socket that keeps the port for the front ends, also while none of them runs. It does not
    listen, so it gets no connections.

    Raises:
        InvalidArgument: the port is taken.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    kept = socket.socket(family, socket.SOCK_STREAM)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(address)
    except OSError as error:
        kept.close()
        raise InvalidArgument(
            f"cannot listen on {host}:{port}: {error.strerror}", field="port"
        ) from error
    return kept


def _launch(descriptor: int) -> subprocess.Popen[bytes]:
    # The server ends its front ends itself, so they get no signal of a terminal or a supervisor.
    with stops_held():
        return subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, "-m", "headrace.server.processes.program", str(descriptor)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
        )
