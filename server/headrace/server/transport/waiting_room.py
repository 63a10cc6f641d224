"""Where handlers of calls that were given up at once wait, so that their clients get slower."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.runtime.system.allocator import release_memory

CAPACITY: Final = 8192
"""The most handlers that wait. Each of their calls takes about 16 KB of gRPC's memory."""

_TICK_SECONDS: Final = 0.05
_GONE_AT_A_TICK: Final = 50
_SURELY_SEEN_SECONDS: Final = 3.0
_WORTH_RELEASING: Final = 512
_RELEASE_SECONDS: Final = 1.0


class WaitingRoom:
    """Lets one handler go 20 times a second, whoever it belongs to. So all distrusted connections
    together get no more calls than that. Handlers whose connections have ended go at once, some at
    a time. Belongs to the event loop's thread.

    Args:
        is_open: whether the connection of a peer was open a second ago. It may not know a
            connection yet that is younger than that.
    """

    def __init__(self, is_open: Callable[[str], bool]) -> None:
        self._is_open = is_open
        self._turns: dict[str, deque[asyncio.Future[None]]] = {}  # by peer
        self._since: dict[str, float] = {}  # when the first of a peer's handlers came
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._peak = 0  # since the room was last empty
        self.waiting = 0

    async def wait(self, peer: str) -> bool:
        """Returns when it is the handler's turn.

        Returns:
            False if there was no place to wait.
        """
        if self._closed:
            return True
        if self.waiting >= CAPACITY:
            return False
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if peer not in self._turns:
            self._turns[peer] = deque()
            self._since[peer] = loop.time()
        self._turns[peer].append(turn)
        self.waiting += 1
        self._peak = max(self._peak, self.waiting)
        if self._timer is None:
            self._timer = loop.call_later(_TICK_SECONDS, self._tick)
        await turn
        return True

    def close(self) -> None:
        """Lets all handlers go, and keeps none from now on."""
        self._closed = True
        for peer in list(self._turns):
            self._release(peer, self.waiting)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        seen = loop.time() - _SURELY_SEEN_SECONDS
        free = _GONE_AT_A_TICK
        for peer in [each for each, since in self._since.items() if since < seen]:
            if free > 0 and not self._is_open(peer):
                free -= self._release(peer, free)
        if self._turns:
            peer = next(iter(self._turns))
            self._release(peer, 1)
            if peer in self._turns:  # then it is another's turn
                self._turns[peer] = self._turns.pop(peer)
        self._timer = loop.call_later(_TICK_SECONDS, self._tick) if self._turns else None
        if not self._turns:
            if self._peak >= _WORTH_RELEASING:  # later, because gRPC still holds some
                loop.call_later(_RELEASE_SECONDS, loop.run_in_executor, None, release_memory)
            self._peak = 0

    def _release(self, peer: str, most: int) -> int:
        turns = self._turns[peer]
        count = min(most, len(turns))
        for _ in range(count):
            turn = turns.popleft()
            if not turn.done():
                turn.set_result(None)
        self.waiting -= count
        if not turns:
            del self._turns[peer], self._since[peer]
        return count
