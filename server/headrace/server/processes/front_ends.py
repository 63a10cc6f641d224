"""The engine's side of the front ends' processes: starts them, starts them again, and ends them."""

from __future__ import annotations

import asyncio
import json
import logging
import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.isolation.server.launch import how
from headrace.runtime.metrics.families import PROCESS_MEMORY_BYTES
from headrace.runtime.metrics.series import SeriesSnapshot
from headrace.runtime.system.backoff import Backoff
from headrace.runtime.system.child_process import import_path, stops_held
from headrace.server.addresses import shown_address
from headrace.server.processes import frames
from headrace.server.processes.calls import Calls
from headrace.server.processes.frames import Broken, Frame
from headrace.server.processes.link import Link
from headrace.server.processes.orders import Orders
from headrace.server.processes.relay import Row
from headrace.server.services.methods import Handlers, Kind
from headrace.server.settings.settings import Settings

_log = logging.getLogger(__name__)

_ONE: Final = (Kind.UNARY, Kind.SERVER_STREAM)
_STREAMS: Final = (Kind.SERVER_STREAM, Kind.STREAM)
_START_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 5.0


class FrontEnds:
    """A `FrontEnd` of several processes that share gRPC's port. Their calls run in this process.

    A front end that ends is started again. Its calls are cancelled; those of others go on.

    Args:
        handlers: the methods.
    """

    def __init__(self, settings: Settings, handlers: Handlers) -> None:
        self._settings = settings
        self._handlers = handlers
        self._running: dict[int, _FrontEnd] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = False
        self._kept: socket.socket | None = None

    @property
    def connections(self) -> int:
        """How many connections all front ends have."""
        return sum(each.connections for each in list(self._running.values()))

    def memory(self) -> Iterator[SeriesSnapshot]:
        """The resident memory of the engine and of each front end. Any thread may ask."""
        running = {f"front-end-{number}": each.pid for number, each in self._running.copy().items()}
        for name, pid in {"engine": os.getpid(), **running}.items():
            with suppress(OSError):  # it has just ended
                pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
                yield SeriesSnapshot(PROCESS_MEMORY_BYTES, (name,), pages * mmap.PAGESIZE)

    def bind(self) -> int:
        """Takes the port for the front ends, and keeps it while none of them runs.

        Raises:
            InvalidArgument: another program has it.
        """
        host, port = self._settings.host, self._settings.port
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # It does not listen, so it gets no connections.
        self._kept = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._kept.bind(address)
        except OSError as error:
            raise InvalidArgument(
                f"cannot listen on {shown_address(host, port)}: {error.strerror}", field="port"
            ) from error
        return int(self._kept.getsockname()[1])

    async def start(self) -> None:
        """Returns when all front ends listen.

        Raises:
            InvalidArgument: one of them cannot listen.
        """
        assert self._kept is not None
        settings = replace(self._settings, port=self._kept.getsockname()[1])
        table = [
            Row(path, streams=kind in _STREAMS, reads_one=kind in _ONE)
            for path, kind in self._handlers.kinds.items()
        ]
        orders = Orders(settings, table).to_json()
        loop = asyncio.get_running_loop()
        ready = [loop.create_future() for _ in range(settings.processes)]
        self._keepers = [
            loop.create_task(self._keep(number, orders, each)) for number, each in enumerate(ready)
        ]
        await asyncio.wait_for(asyncio.gather(*ready), _START_SECONDS)

    async def stop(self, seconds: float) -> None:
        """Ends the front ends, after the callers have the statuses that were sent.

        Args:
            seconds: how long calls without a status may go on.
        """
        self._stopping = True
        for each in self._running.values():
            each.stop()
        if self._keepers:
            await asyncio.wait(self._keepers, timeout=seconds + _STOP_SECONDS)
            for keeper in self._keepers:
                keeper.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)
        if self._kept is not None:
            self._kept.close()

    async def _keep(self, number: int, orders: bytes, ready: asyncio.Future[None]) -> None:
        """Keeps one front end running until the server stops."""
        backoff = Backoff()
        while True:
            problem, why = await self._run(number, orders, ready, backoff)
            if problem is not None and not ready.done():
                ready.set_exception(InvalidArgument(problem, field="port"))
            if self._stopping:
                return
            pause = backoff.died(time.monotonic(), useful=problem is None)
            _log.error("front end %d ended: %s; it starts again", number, why)
            await asyncio.sleep(pause)

    async def _run(
        self, number: int, orders: bytes, ready: asyncio.Future[None], backoff: Backoff
    ) -> tuple[str | None, str]:
        """Runs one front end until it ends. Returns why it did not listen (None if it did), and how
        it ended."""
        try:
            one = _FrontEnd(orders, self._handlers, self._settings.max_message_bytes)
        except OSError as error:
            why = f"cannot start a front end: {error.strerror}"
            return why, why
        self._running[number] = one
        try:
            problem = await one.ready
            if problem is None:
                backoff.started(time.monotonic())
                if not ready.done():
                    ready.set_result(None)
                await one.gone
        finally:
            del self._running[number]
            status = await one.end()
        return problem, problem or how(status)


class _FrontEnd:
    """One process.

    Attributes:
        ready: done when it listens. Its result is None, or says why it does not listen.
        gone: done when the connection to it has ended.
        connections: how many it has.
        pid: the process.
    """

    def __init__(self, orders: bytes, handlers: Handlers, max_message: int) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[str | None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.connections = 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                self._process = _launch(theirs.fileno())
            except BaseException:
                ours.close()
                raise
        self.pid = self._process.pid
        self._link = Link(ours, self._take, self._lost, max_message, pauses=True)
        self._calls = Calls(self._link, handlers)
        self._link.send(frames.SETUP, 0, orders)

    def stop(self) -> None:
        self._link.send(frames.STOP, 0)

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
            self._calls.take(frame)

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
