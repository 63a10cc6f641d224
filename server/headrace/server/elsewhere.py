"""Networks that other servers have, and this one does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol


class Elsewhere(Protocol):
    """Passes requests on to servers that have their networks. Any thread may call it, but `unary`
    belongs to the event loop of gRPC."""

    def __bool__(self) -> bool:
        """Whether there may be any such networks."""

    def find(self, names: Iterable[str], context: Any, sequence: str = "") -> str:
        """The first of these full names that a network has, if a call to it is passed on. Otherwise
        an empty text.

        Args:
            sequence: the sequence that the request belongs to. One server has all of it.
        """

    def servers(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names of the servers that are to have the first of these full names that a network
        has. Empty if this server serves it, or if there is none."""

    def serves(self, name: str) -> bool:
        """Whether another server serves the network with this full name."""

    async def unary(
        self, name: str, path: str, data: bytes, context: Any, sequence: str = ""
    ) -> bytes:
        """The serialised reply of a method.

        Args:
            name: the full name of the network that the call is about.
            path: the method's.
            sequence: the sequence that the request belongs to.

        Raises:
            HeadraceError: the other server's error. Unavailable if no server answers.
        """


class ElsewhereFromLoop:
    """Implements `Elsewhere` on another event loop.

    Args:
        loop: that of gRPC.
    """

    def __init__(self, elsewhere: Elsewhere, loop: asyncio.AbstractEventLoop) -> None:
        self._elsewhere = elsewhere
        self._loop = loop
        self.find, self.servers, self.serves = elsewhere.find, elsewhere.servers, elsewhere.serves

    def __bool__(self) -> bool:
        return bool(self._elsewhere)

    async def unary(
        self, name: str, path: str, data: bytes, context: Any, sequence: str = ""
    ) -> bytes:
        call = self._elsewhere.unary(name, path, data, context, sequence)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))
