"""Loads and unloads whose callers may leave before they begin, during them, or never."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from headrace.runtime.errors import Cancelled, NotFound
from headrace.runtime.loading.executor import LoadExecutor
from headrace.server.serving.catalogue import Catalogue
from tests.support.patience import PATIENCE_SECONDS


class Loads:
    """A core that notes which loads it is to cancel."""

    def __init__(self) -> None:
        self.cancelled: list[Future[Any]] = []

    def cancel_load(self, load: Future[Any]) -> None:
        self.cancelled.append(load)


def catalogue_of(core: Any) -> Catalogue:
    return Catalogue(core, lambda _: None)


def test_a_load_that_begins_after_its_caller_has_left_is_cancelled() -> None:
    async def scenario() -> None:
        core, load, may_begin = Loads(), Future[Any](), threading.Event()

        def begin() -> list[Future[Any]]:
            may_begin.wait()
            return [load]

        task = asyncio.create_task(catalogue_of(core).load("n", begin))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not core.cancelled
        may_begin.set()
        while not core.cancelled:
            await asyncio.sleep(0)
        assert core.cancelled == [load]

    asyncio.run(scenario())


def test_a_caller_that_leaves_a_store_that_hangs_leaves_its_place_to_another() -> None:
    async def scenario() -> None:
        loop, began, answers = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
        catalogue, threads = catalogue_of(Loads()), LoadExecutor(1)

        def hang() -> list[Future[Any]]:
            loop.call_soon_threadsafe(began.set)
            answers.wait()
            return []

        first = asyncio.create_task(catalogue.load("n", hang, threads))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await began.wait()
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
                assert await catalogue.load("n", list, threads) == []
        finally:
            answers.set()
            threads.stop()

    asyncio.run(scenario())


def test_a_load_of_several_versions_ends_with_the_last_and_raises_the_first_error() -> None:
    async def scenario() -> None:
        loads = [Future[Any]() for _ in range(3)]
        task = asyncio.create_task(catalogue_of(Loads()).load("n", lambda: loads))
        loads[2].set_exception(NotFound("third"))
        loads[1].set_exception(NotFound("second"))
        done, _ = await asyncio.wait({task}, timeout=0)
        assert not done
        loads[0].set_result("first")
        with pytest.raises(NotFound, match="second"):
            await task

    asyncio.run(scenario())


def test_what_cannot_begin_is_the_caller_s_error() -> None:
    def begin() -> Any:
        raise NotFound("no such network")

    with pytest.raises(NotFound, match="no such network"):
        asyncio.run(catalogue_of(Loads()).unload(begin))


def test_an_unload_that_fails_after_its_caller_left_is_no_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        unload, begun = Future[Any](), asyncio.Event()
        loop = asyncio.get_running_loop()

        def begin() -> Future[Any]:
            loop.call_soon_threadsafe(begun.set)
            return unload

        task = asyncio.create_task(catalogue_of(Loads()).unload(begin))
        await begun.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        unload.set_exception(Cancelled("the server stops"))
        del task
        for _ in range(3):  # the loop hears of it
            await asyncio.sleep(0)
        gc.collect()  # asyncio tells of errors that nobody heard of when their futures go

    asyncio.run(scenario())
    assert not caplog.records
