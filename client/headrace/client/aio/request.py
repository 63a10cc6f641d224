"""A request in flight, of the asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.client import errors
from headrace.client.outputs import Outputs


class InferRequest:
    """A started request."""

    def __init__(self, task: asyncio.Task[Outputs]) -> None:
        self._task = task
        # It is no mistake not to ask for a result, so asyncio must not warn about it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits until the request has finished, in whatever way.

        Args:
            timeout: in seconds; None waits for ever.

        Returns:
            False when time was up first.
        """
        await asyncio.wait({self._task}, timeout=timeout)
        return self._task.done()

    async def result(self) -> Outputs:
        """The outputs; waits for them.

        Raises:
            Cancelled: it was cancelled.
            Error: what the request raised.
        """
        await asyncio.wait({self._task})  # unlike awaiting it, cancelling this leaves it running
        if self._task.cancelled():
            raise errors.cancelled()
        return self._task.result()

    def cancel(self) -> bool:
        """Cancels the request, also on the server; False if it had finished."""
        return self._task.cancel()

    def done(self) -> bool:
        """Whether it has finished, in whatever way."""
        return self._task.done()

    def add_done_callback(self, callback: Callable[[InferRequest], object]) -> None:
        """Calls `callback` with this request on the event loop, soon after it has finished."""
        self._task.add_done_callback(lambda _: callback(self))
