"""The calls that are open, whose callers may go away."""

from __future__ import annotations

import asyncio
import time

from headrace.server.transport.asgi.call import AsgiCall

_LOOK_SECONDS = 0.05


class OpenCalls:
    """Looks now and then whether callers have given up. Belongs to the event loop's thread.

    There is one timer for all calls, and none without calls. A call that ends before its first
    look costs a place in a set.
    """

    def __init__(self) -> None:
        self._calls: set[AsgiCall] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: AsgiCall) -> None:
        self._calls.add(call)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def remove(self, call: AsgiCall) -> None:
        self._calls.discard(call)

    def cancel_all(self) -> None:
        for call in self._calls:
            call.cancel()

    def _look(self) -> None:
        now = time.monotonic()
        for call in self._calls:
            if call.look_at <= now:
                call.look(now)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LOOK_SECONDS, self._look) if self._calls else None
