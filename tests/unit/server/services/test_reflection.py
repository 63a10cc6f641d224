"""Reflection's calls end when the service is closed, wherever they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from grpc_reflection.v1alpha import reflection_pb2

from headrace.server.services.reflection import ReflectionService

QUESTION = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()


class Caller:
    """Asks once, says that it has nothing more to ask for now, and never ends the call."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    async def questions(self) -> AsyncIterator[bytes]:
        yield QUESTION
        self.waits.set()
        await asyncio.Event().wait()


def test_a_call_that_waits_for_its_caller_ends_at_once() -> None:
    async def scenario() -> None:
        service, caller = ReflectionService(["a.Service"]), Caller()
        answers = service.ServerReflectionInfo(caller.questions(), None)

        async def call() -> int:
            return len([answer async for answer in answers])

        running = asyncio.create_task(call())
        await caller.waits.wait()
        service.close()
        assert await running == 1

    asyncio.run(scenario())


def test_a_call_that_is_being_answered_ends_after_its_answer_and_is_not_cancelled() -> None:
    async def scenario() -> None:
        service, caller = ReflectionService(["a.Service"]), Caller()
        answers = service.ServerReflectionInfo(caller.questions(), None)
        names = [each.name for each in (await anext(answers)).list_services_response.service]
        assert "a.Service" in names
        service.close()
        await asyncio.sleep(0)  # the answer is being written
        assert [answer async for answer in answers] == []

    asyncio.run(scenario())
