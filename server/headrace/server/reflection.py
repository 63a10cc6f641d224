"""Server reflection whose open calls end with the work, not with the server's grace period."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any

from grpc_reflection.v1alpha import reflection


class ReflectionService(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """grpcio's, which can be closed. Belongs to the event loop's thread."""

    def __init__(self, services: Iterable[str]) -> None:
        super().__init__([*services, reflection.SERVICE_NAME])
        self._calls: set[asyncio.Task[Any]] = set()
        self._closed = False

    def close(self) -> None:
        """Ends every call that waits for its caller."""
        self._closed = True
        for call in self._calls:
            call.cancel()

    async def ServerReflectionInfo(  # noqa: N802 - the protocol's name
        self, requests: AsyncIterable[Any], context: Any
    ) -> AsyncIterator[Any]:
        async for reply in super().ServerReflectionInfo(self._until_closed(requests), context):
            yield reply

    async def _until_closed(self, requests: AsyncIterable[Any]) -> AsyncIterator[Any]:
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        try:
            async for request in requests:
                yield request
        except asyncio.CancelledError:
            if not self._closed:
                raise
            call.uncancel()
        finally:
            self._calls.discard(call)
