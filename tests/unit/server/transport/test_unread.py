"""Replies that their callers do not read: how many bytes may wait."""

from __future__ import annotations

import asyncio

import pytest

from headrace.cluster.placement.methods import Serialised
from headrace.runtime.errors import ResourceExhausted
from headrace.server.transport.unread import UnreadReplies
from headrace.v1 import inference_engine_pb2 as pb

GREEDY, OTHER = "ipv4:10.0.0.1:1", "ipv4:10.0.0.2:1"
REPLY = bytes(10_000)


def test_replies_that_are_not_read_are_bounded_and_leave_room_for_others() -> None:
    async def scenario() -> None:
        unread = UnreadReplies(10 * len(REPLY))
        end = asyncio.Event()
        calls = [asyncio.create_task(end.wait()) for _ in range(8)]

        refusals: list[str] = []

        def held(peer: str) -> int:
            count = 0
            for call in calls:
                try:
                    unread.hold(REPLY, peer, call)
                except ResourceExhausted as error:
                    refusals.append(error.message)
                    break
                count += 1
            return count

        assert held(GREEDY) == 6
        assert "over InferStream, which waits" in refusals[0]
        assert held(OTHER) > 0
        assert unread.memory.taken <= unread.memory.capacity
        end.set()
        await asyncio.gather(*calls)
        await asyncio.sleep(0)
        assert unread.memory.taken == 0, "what was sent makes room"

    asyncio.run(scenario())


@pytest.mark.parametrize("reply", [b"small", pb.InferReply(id="small")])
def test_small_replies_are_bounded_by_the_places_of_calls_alone(reply: object) -> None:
    async def scenario() -> None:
        unread = UnreadReplies(1)
        call = asyncio.create_task(asyncio.sleep(0))
        unread.hold(reply, GREEDY, call)
        assert unread.memory.taken == 0
        await call

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "reply",
    [REPLY, pb.InferReply(id=REPLY.decode()), Serialised(REPLY)],
    ids=lambda it: type(it).__name__,
)
def test_replies_of_every_form_are_counted(reply: object) -> None:
    async def scenario() -> None:
        unread = UnreadReplies(1 << 20)
        call = asyncio.create_task(asyncio.sleep(0))
        unread.hold(reply, GREEDY, call)
        assert unread.memory.taken >= len(REPLY)
        await call

    asyncio.run(scenario())
