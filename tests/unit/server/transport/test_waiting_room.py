"""How handlers of calls that were given up wait for their turn."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from headrace.server.transport import waiting_room
from headrace.server.transport.waiting_room import WaitingRoom

A, B = "ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2"


@pytest.fixture(autouse=True)
def _short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "_TICK_SECONDS", 0.001)


async def enter(room: WaitingRoom, *peers: str) -> list[asyncio.Task[bool]]:
    tasks = [asyncio.create_task(room.wait(peer)) for peer in peers]
    while room.waiting < len(peers):
        await asyncio.sleep(0)
    return tasks


def _note(order: list[str], name: str, _: object) -> None:
    order.append(name)


def test_connections_take_turns() -> None:
    async def check() -> list[str]:
        room = WaitingRoom(lambda _: True)
        order: list[str] = []
        for task, name in zip(await enter(room, A, A, A, B), "aaab", strict=True):
            task.add_done_callback(partial(_note, order, name))
        while room.waiting:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        return order

    assert asyncio.run(check()) == list("abaa")


def test_handlers_of_ended_connections_go_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "_SURELY_SEEN_SECONDS", 0.0)

    async def check() -> int:
        room = WaitingRoom(lambda peer: peer == A)
        tasks = await enter(room, *[A] * 40, *[B] * 40)
        await asyncio.wait(tasks[40:])
        waiting = room.waiting
        room.close()
        await asyncio.wait(tasks)
        return waiting

    assert asyncio.run(check()) >= 30


def test_a_full_room_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "CAPACITY", 3)

    async def check() -> None:
        room = WaitingRoom(lambda _: True)
        monkeypatch.setattr(waiting_room, "_TICK_SECONDS", 1e9)
        tasks = await enter(room, A, A, B)
        assert not await room.wait(B)
        room.close()
        assert await asyncio.gather(*tasks) == [True] * 3

    asyncio.run(check())


def test_nobody_waits_in_a_closed_room() -> None:
    async def check() -> None:
        room = WaitingRoom(lambda _: True)
        room.close()
        assert await room.wait(A)
        assert room.waiting == 0

    asyncio.run(check())
