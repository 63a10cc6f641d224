"""A want of memory ends what meets it, and not the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.server.loop import LastingLoop


class Unreportable:
    """A callback that has no memory, and whose failure cannot be reported for want of it."""

    def __call__(self) -> None:
        raise MemoryError

    def __repr__(self) -> str:
        raise MemoryError


def run(scenario: Callable[[], Awaitable[str]]) -> str:
    async def whole() -> str:
        return await scenario()

    with asyncio.Runner(loop_factory=LastingLoop) as runner:
        return runner.run(whole())


def test_a_callback_whose_want_of_memory_cannot_even_be_reported_ends_alone() -> None:
    async def scenario() -> str:
        loop = asyncio.get_running_loop()
        others: asyncio.Future[str] = loop.create_future()
        loop.call_soon(Unreportable())
        loop.call_soon(Unreportable())
        loop.call_soon(others.set_result, "the others")
        return await others

    assert run(scenario) == "the others"


def test_what_the_server_itself_lacks_memory_for_still_ends_it() -> None:
    async def scenario() -> str:
        raise MemoryError

    with pytest.raises(MemoryError):
        run(scenario)
