"""Asks front ends for the users of their connections, whose sockets only they have."""

from __future__ import annotations

import asyncio
import itertools
from contextvars import ContextVar

from headrace.server.processes import frames
from headrace.server.processes.frames import Broken, Frame
from headrace.server.processes.link import Link

_NOBODY = 0
_FIRST = 1  # is added to a user's number, because 0 is root


class Asking:
    """The questions to one front end. Belongs to the event loop's thread."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[int | None]] = {}

    async def of(self, peer: str) -> int | None:
        """The user of a connection; None if the front end does not know."""
        if self._link.closed:
            return None
        number = next(self._numbers) % (1 << 32)
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._open[number] = answer
        self._link.send(frames.ASK, number, peer.encode())
        try:
            return await answer
        finally:
            del self._open[number]

    def take(self, frame: Frame) -> None:
        """Handles an answer."""
        user = frames.parse_number(frame.body)
        answer = self._open.get(frame.call)
        if answer is None:
            return  # who asked has been cancelled
        if answer.done():
            raise Broken("a question was answered twice")
        answer.set_result(None if user == _NOBODY else user - _FIRST)


def answer(user: int | None) -> bytes:
    """The body of a front end's answer."""
    return frames.number(_NOBODY if user is None else user + _FIRST)


ASKING: ContextVar[Asking | None] = ContextVar("asking", default=None)
"""The front end of the call that this task handles."""


class RelayedUsers:
    """Finds the users of connections to front ends, as `Users` does in a server of one process."""

    async def of(self, peer: str) -> int | None:
        asking = ASKING.get()
        return None if asking is None else await asking.of(peer)
