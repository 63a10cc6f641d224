"""A front end's process: ``python -m headrace.server.processes.program DESCRIPTOR``.

The argument is the descriptor of the connection to the engine. The engine says first what to do.
The front end then listens for gRPC, and ends when the engine says so, or when the engine has gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from contextlib import suppress
from typing import Final

import uvloop

from headrace.runtime.errors import HeadraceError
from headrace.runtime.system.allocator import tune_allocator
from headrace.server.access.authenticator import authenticator
from headrace.server.access.watched import Watcher
from headrace.server.logs import configure_logging
from headrace.server.processes import frames
from headrace.server.processes.frames import Frame
from headrace.server.processes.link import Link
from headrace.server.processes.orders import Orders
from headrace.server.processes.relay import Relay
from headrace.server.processes.users import answer
from headrace.server.shared_memory.users import Users
from headrace.server.transport.front_end import GrpcioFrontEnd
from headrace.server.transport.limits import allow_open_files, strangers
from headrace.server.transport.tls import server_tls

_LOOK_SECONDS: Final = 1.0
_FINISH_SECONDS: Final = 2.0
_CLOSE_SECONDS: Final = 0.2


class FrontEnd:
    """One front end on the running event loop."""

    def __init__(self, end: socket.socket) -> None:
        self._orders: asyncio.Future[Orders] = asyncio.get_running_loop().create_future()
        self._relay: Relay | None = None
        self._stopped = asyncio.Event()
        self._users = Users()
        self._answers: set[asyncio.Task[None]] = set()  # asyncio would lose them
        # The engine is trusted, so its messages have no bound here.
        self._link = Link(end, self._take, self._lost, _NO_BOUND)

    async def run(self) -> None:
        """Serves until the engine says stop."""
        orders = await self._orders
        settings = orders.settings
        configure_logging(settings.log_level, settings.log_format, sys.stderr)
        try:
            await self._serve(orders)
        except HeadraceError as error:
            self._tell({"error": error.message})
            await self._stopped.wait()

    async def _serve(self, orders: Orders) -> None:
        settings = orders.settings
        watcher = Watcher()
        tls = server_tls(settings, watcher)
        known = authenticator(settings, watcher)
        unwanted = strangers(settings, checks=known is not None)
        self._relay = Relay(
            self._link,
            orders.table,
            known,
            certificates=tls is not None and tls.needs_client_certificate,
            met=unwanted.met,
            places=settings.max_concurrent_rpcs,
        )
        front_end = GrpcioFrontEnd(settings, tls, self._relay, unwanted)
        front_end.bind()
        watcher.start()
        await front_end.start()
        self._tell({})
        look = asyncio.create_task(self._look(front_end))
        await self._stopped.wait()
        look.cancel()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._relay.finish(), _FINISH_SECONDS)
        await front_end.stop(_CLOSE_SECONDS)

    async def _look(self, front_end: GrpcioFrontEnd) -> None:
        """Tells the engine how many connections there are, when that has changed."""
        told = 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = front_end.connections
            if now != told:
                self._link.send(frames.CONNECTIONS, 0, frames.number(now))
                told = now

    def _tell(self, facts: dict[str, str]) -> None:
        self._link.send(frames.SETUP, 0, json.dumps(facts).encode())

    def _take(self, frame: Frame) -> None:
        if frame.kind == frames.SETUP:
            self._orders.set_result(Orders.from_json(frame.body))
        elif frame.kind == frames.STOP:
            self._stopped.set()
        elif frame.kind == frames.ASK:
            task = asyncio.create_task(self._answer(frame))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)
        elif self._relay is not None:
            self._relay.take(frame)

    async def _answer(self, frame: Frame) -> None:
        """Tells the engine whose connection it asks for."""
        user = await self._users.of(frame.body.decode())
        self._link.send(frames.ASK, frame.call, answer(user))

    def _lost(self, _: str) -> None:
        # Without the engine there is nothing to answer. Callers see UNAVAILABLE.
        os._exit(1)


_NO_BOUND: Final = 1 << 31


async def _run(descriptor: int) -> None:
    sys.setswitchinterval(0.0005)
    await FrontEnd(socket.socket(fileno=descriptor)).run()


def main(arguments: list[str]) -> None:
    tune_allocator()
    allow_open_files()
    uvloop.run(_run(int(arguments[0])))
    sys.stderr.flush()
    os._exit(0)  # gRPC's threads may crash a process that ends around them


if __name__ == "__main__":
    main(sys.argv[1:])
