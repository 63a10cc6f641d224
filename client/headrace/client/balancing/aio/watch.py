"""The task of an asyncio client with several servers: health, and names in DNS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import grpc

from headrace.client.balancing.fleet import TICK_SECONDS, Server
from headrace.client.balancing.health import ProbeResult, answer_of
from headrace.client.channel.channel import CallFailed
from headrace.client.errors import Error


class Watch:
    """Ticks while the client has work, and ends otherwise."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._task: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._resolved_at = time.monotonic()

    def wake(self) -> None:
        """Notes that the client has work."""
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for task in self._background:
            task.cancel()

    async def _run(self) -> None:
        group = self._client.group
        while True:
            for route in group.forget_retired():
                await route.close()
            for server in group.fleet.due():
                self._start(self._probe(server))
            now = time.monotonic()
            if group.name is not None and group.fleet.must_resolve(now - self._resolved_at):
                self._resolved_at = now
                self._start(self._client.resolve())
            if group.fleet.may_sleep():
                return
            await asyncio.sleep(TICK_SECONDS)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _probe(self, server: Server) -> None:
        """Asks a server for its health. Gives up what is in flight there if it is silent."""
        answer = ProbeResult.REFUSED
        group = self._client.group
        try:
            reply = await server.route.probe(server.health.probe_seconds)
            answer = answer_of(grpc.StatusCode.OK, reply.message)
        except CallFailed as failure:
            answer = answer_of(failure.code, None)
        except Error:  # the route was closed meanwhile
            pass
        finally:
            silent = group.fleet.probed(server, answer)
        old = group.give_up(server) if silent else None
        if old is not None:
            await old.close()
