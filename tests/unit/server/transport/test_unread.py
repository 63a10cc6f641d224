"""Replies that their callers do not read: how many bytes may wait."""

from __future__ import annotations

import asyncio

from headrace.runtime.errors import ResourceExhausted
from headrace.server.transport.unread import UnreadReplies
from tests.support.calls import FakeCall

GREEDY, OTHER = "ipv4:10.0.0.1:1", "ipv4:10.0.0.2:1"
REPLY = bytes(10_000)


def test_replies_that_are_not_read_are_bounded_and_leave_room_for_others() -> None:
    async def scenario() -> None:
        unread = UnreadReplies(10 * len(REPLY))
        calls = [FakeCall() for _ in range(8)]

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
        for call in calls:
            call.end()
        assert unread.memory.taken == 0, "what was sent makes room"

    asyncio.run(scenario())


def test_small_replies_are_bounded_by_the_places_of_calls_alone() -> None:
    unread = UnreadReplies(1)
    unread.hold(b"small", GREEDY, FakeCall())
    assert unread.memory.taken == 0
