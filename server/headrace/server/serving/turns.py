"""The order of a stream's requests that belong to one sequence."""

from __future__ import annotations

import asyncio


class Turns:
    """Keeps the requests of each sequence in order until they are submitted, because a request may
    wait for the bytes of its inputs when the next one comes. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Future[None]] = {}

    def __bool__(self) -> bool:
        """Whether any request waits."""
        return bool(self._last)

    def waits(self, sequence: str) -> bool:
        """Whether a request of the sequence waits, so that the next one needs a turn, too."""
        return sequence in self._last

    def take(self, sequence: str) -> Turn:
        """The turn of the sequence's next request."""
        over = asyncio.get_running_loop().create_future()
        before, self._last[sequence] = self._last.get(sequence), over

        def forget(_: object) -> None:
            if self._last.get(sequence) is over:
                del self._last[sequence]

        over.add_done_callback(forget)
        return Turn(before, over)


class Turn:
    """A request's turn. Its request calls `over` at its end, whatever happens."""

    def __init__(self, before: asyncio.Future[None] | None, over: asyncio.Future[None]) -> None:
        self._before = before
        self._over = over

    async def comes(self) -> None:
        """Waits until the requests before this one have been submitted, or have failed."""
        if self._before is not None and not self._before.done():
            await asyncio.wait({self._before})

    def over(self) -> None:
        """Lets the next request go on, after those before this one. Idempotent."""
        before, over = self._before, self._over
        if before is None or before.done():
            _finish(over)
        else:
            before.add_done_callback(lambda _: _finish(over))


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
