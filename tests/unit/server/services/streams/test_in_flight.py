"""Requests of a stream that may have to wait."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.runtime.errors import Cancelled
from headrace.server.services.streams.in_flight import Tasks

Told = list[tuple[Any, BaseException | None]]


def test_a_request_that_does_not_wait_ends_where_it_begins() -> None:
    async def answer() -> bytes:
        return b"reply"

    async def refuse() -> bytes:
        raise ValueError("no")

    async def scenario() -> None:
        told: Told = []
        tasks: Tasks[bytes] = Tasks()
        for work in (answer(), refuse()):
            tasks.begin(work, lambda outcome, error, *_: told.append((outcome, error)))
        assert [outcome for outcome, _ in told] == [b"reply", None]
        assert isinstance(told[1][1], ValueError)

    asyncio.run(scenario())


def test_a_request_that_is_cancelled_as_soon_as_it_waits_ends_with_the_reason() -> None:
    async def wait() -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            left.append("what it held")
        return b""

    async def scenario() -> None:
        told: Told = []
        tasks: Tasks[bytes] = Tasks()
        cancel = tasks.begin(wait(), lambda outcome, error, *_: told.append((outcome, error)))
        reason = Cancelled("enough")
        cancel(reason)
        while not told:
            await asyncio.sleep(0)
        assert told == [(None, reason)]
        assert left == ["what it held"]

    left: list[str] = []
    asyncio.run(scenario())
