"""Loads, unloads and queries for callers who may leave, whatever protocol they come by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

from headrace.runtime.core import Core
from headrace.runtime.errors import Cancelled
from headrace.runtime.loading.entry import NetworkEntry
from headrace.runtime.loading.executor import LoadExecutor
from headrace.runtime.transform.query import QueryResult

R = TypeVar("R")


class Catalogue:
    """May be used on any event loop.

    What begins a load, an unload or a query runs on another thread, which sees the same caller: it
    may wait for a file, for a device's worker or for its backend.

    Args:
        changed: is told the full name of each network that has been loaded, even if its caller has
            left. Any thread may call it.
    """

    def __init__(self, core: Core, changed: Callable[[str], object]) -> None:
        self._core = core
        self._changed = changed

    async def load(
        self,
        name: str,
        begin: Callable[[], Sequence[Future[NetworkEntry]]],
        threads: LoadExecutor | None = None,
    ) -> list[NetworkEntry]:
        """Loads the versions of a network. Returns when all loads have ended.

        If the caller leaves, the loads are cancelled, even if they begin only then.

        Args:
            name: the network's full name.
            threads: where `begin` runs; None for those of the event loop.

        Raises:
            What `begin` raises, or the error of the first of its loads that has failed.
        """

        def begin_and_tell() -> Sequence[Future[NetworkEntry]]:
            begun = begin()
            for load in begun:
                load.add_done_callback(lambda _: self._changed(name))
            return begun

        return await _ended(begin_and_tell, self._core.cancel_load, threads)

    async def unload(self, begin: Callable[[], Future[None]]) -> None:
        """Unloads networks. Returns when their memory is free. It goes on if the caller leaves.

        Raises:
            What `begin` and its future raise.
        """
        await _ended(lambda: [begin()], lambda _: None)

    async def query(self, begin: Callable[[], Future[QueryResult]]) -> QueryResult:
        """The answer to a query, which is cancelled if the caller leaves.

        Raises:
            What `begin` and its future raise.
        """
        (answer,) = await _ended(lambda: [begin()], self._core.cancel_query)
        return answer


async def _ended(
    begin: Callable[[], Sequence[Future[R]]],
    cancel: Callable[[Future[R]], object],
    threads: LoadExecutor | None = None,
) -> list[R]:
    """The results of all that `begin` begins. `cancel` gets each if the caller leaves. Nobody then
    logs its error."""

    def give_up(beginning: asyncio.Future[Sequence[Future[R]]]) -> None:
        if not beginning.cancelled() and beginning.exception() is None:
            for load in beginning.result():
                cancel(load)

    task = threads.submit(begin) if threads is not None else None
    beginning: asyncio.Future[Sequence[Future[R]]] = (
        asyncio.wrap_future(task)
        if task is not None
        else asyncio.get_running_loop().run_in_executor(None, copy_context().run, begin)
    )
    try:
        begun = await asyncio.shield(beginning)
        ending = asyncio.gather(*map(asyncio.wrap_future, begun), return_exceptions=True)
        results = await asyncio.shield(ending)
    except asyncio.CancelledError:
        if beginning.done():
            give_up(beginning)
        else:
            beginning.add_done_callback(give_up)
            if threads is not None and task is not None:
                threads.give_up(task, Cancelled("the caller has left"))
        raise
    ended: list[R] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        ended.append(result)
    return ended
