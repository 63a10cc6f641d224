"""An asyncio client's connections, which belong to the event loop that they are used on."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.client.errors import other_loop
from headrace.client.transport import Channels


class LoopChannels(Channels):
    """Connections that are opened on the loop of the first call. When that loop has been closed,
    the next call opens new ones on its own loop: `asyncio.run` makes a loop each time."""

    _loop: asyncio.AbstractEventLoop | None = None

    def callable(self, method: str, *, once: bool = False) -> Any:
        """gRPC's callable of a method.

        Raises:
            FailedPrecondition: the client is closed, or is in use on another loop, or belongs to
                the process that this one was forked from.
        """
        if self._loop is not asyncio.get_running_loop():
            self._move()
        return super().callable(method, once=once)

    def close(self) -> list[Any]:
        if not self.inherited:
            self._move()
        return super().close()

    def _move(self) -> None:
        """Takes the running loop for the client's own."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop and not self.inherited:
            if not self._loop.is_closed():
                raise other_loop()
            self._opened.clear()
            self._streams = None
        self._loop = loop
