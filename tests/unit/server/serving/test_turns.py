"""The requests of one sequence keep their order while they wait for their inputs."""

from __future__ import annotations

import asyncio
import random

import pytest

from headrace.server.serving.turns import Turns


def test_a_turn_comes_when_the_one_before_is_over() -> None:
    async def scenario() -> None:
        turns = Turns()
        assert not turns
        first, second, other = turns.take("a"), turns.take("a"), turns.take("b")
        await first.comes()
        await other.comes()
        waiting = asyncio.ensure_future(second.comes())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert turns.waits("a")
        first.over()
        first.over()
        await waiting
        second.over()
        other.over()
        await asyncio.sleep(0)
        assert not turns
        assert not turns.waits("a")

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_requests_are_submitted_in_order_whatever_takes_long_fails_or_is_cancelled(
    seed: int,
) -> None:
    choose = random.Random(seed)
    submitted: list[int] = []

    async def scenario() -> None:
        turns = Turns()

        async def ask(number: int) -> None:
            turn = turns.take("s")
            try:
                for _ in range(choose.randrange(5)):
                    await asyncio.sleep(0)
                if choose.random() < 0.2:
                    raise OSError
                await turn.comes()
                submitted.append(number)
            finally:
                turn.over()

        tasks = []
        for number in range(30):
            tasks.append(asyncio.ensure_future(ask(number)))
            await asyncio.sleep(0)  # it takes its turn
            if choose.random() < 0.2:
                choose.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert not turns

    asyncio.run(scenario())
    assert submitted == sorted(submitted)
    assert len(submitted) > 5
