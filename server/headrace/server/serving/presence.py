"""Waits for networks that are known and not loaded, within a request's deadline."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from headrace.runtime.errors import Cancelled, DeadlineExceeded, NotLoaded
from headrace.runtime.loading.cold_loads import ColdNetwork, LoadWaiter
from headrace.runtime.loading.entry import plain_name
from headrace.server.access.identity import sharer

T = TypeVar("T")


async def when_loaded(
    take: Callable[[], Awaitable[T]], deadline: float | None = None, priority: int = 0
) -> T:
    """What `take` returns, which acquires networks. If one is not loaded, it is tried again when
    the load has ended. May be used on any event loop.

    Args:
        deadline: on the monotonic clock; None to wait for as long as the load takes.
        priority: that of the request.

    Raises:
        What `take` raises, and what the load raises if the network is as it was after it.
        DeadlineExceeded: the network was not loaded in time.
        As `ColdLoads.wait`.
    """
    try:
        return await take()
    except NotLoaded as error:
        missing = _cold(error)
    has_begun_anew = False
    while True:
        async with _loaded(missing, deadline, priority) as waiter:
            try:
                return await take()
            except NotLoaded as error:
                before, missing = missing, _cold(error)
            begins_anew = isinstance(waiter.error, Cancelled) and not has_begun_anew
            has_begun_anew |= begins_anew  # somebody else had begun that load, and left
            if waiter.error is not None and missing.entry is before.entry and not begins_anew:
                # Each who raises it would add the frames of its own call.
                raise waiter.error.with_traceback(waiter.trace)


async def called_when_loaded(
    take: Callable[[], T], deadline: float | None = None, priority: int = 0
) -> T:
    """As `when_loaded`, with a function that does not wait."""

    async def taken() -> T:
        return take()

    return await when_loaded(taken, deadline, priority)


def _cold(error: NotLoaded) -> ColdNetwork:
    assert isinstance(error.cold, ColdNetwork)
    return error.cold


@asynccontextmanager
async def _loaded(
    missing: ColdNetwork, deadline: float | None, priority: int
) -> AsyncIterator[LoadWaiter]:
    """Waits until a load has ended. A network that is loaded then stays within the context."""
    entry, loads = missing
    loop, begun = asyncio.get_running_loop(), time.monotonic()
    ended: asyncio.Future[bool] = loop.create_future()

    def end(loaded: bool) -> None:
        if not ended.done():
            ended.set_result(loaded)

    def told(_: LoadWaiter) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(end, True)

    seconds = math.inf if deadline is None else deadline - begun
    waiter = loads.wait(entry, told, who=sharer(), priority=priority, seconds=seconds)
    # A handler is no task until it waits, so `asyncio.timeout` cannot be used.
    alarm = None if deadline is None else loop.call_later(max(seconds, 0.0), end, False)
    try:
        if not await ended:
            error = DeadlineExceeded(
                f"network {plain_name(entry.key.name)!r} was not loaded within the "
                f"{time.monotonic() - begun:.2g} s that the request had"
            )
            error.retry_delay_seconds = loads.retry_seconds
            raise error
        yield waiter
    finally:
        if alarm is not None:
            alarm.cancel()
        loads.leave(waiter)
