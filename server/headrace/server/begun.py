"""Coroutines that have run to their first wait without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Remainder(Generic[T]):
    """What is left of such a coroutine, for a task to await. Cancel that with `cancel_soon`.

    Args:
        waiting: what the coroutine waits for.
    """

    __slots__ = ("_waiting", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], waiting: Any) -> None:
        self._work = work
        self._waiting = waiting

    def __await__(self) -> Generator[Any, Any, T]:
        work, waiting = self._work, self._waiting
        while True:
            try:
                try:
                    sent = yield waiting
                except BaseException as error:  # noqa: BLE001 - the coroutine's to handle
                    waiting = work.throw(error)
                else:
                    waiting = work.send(sent)
            except StopIteration as done:
                result: T = done.value
                return result


def cancel_soon(task: asyncio.Task[Any]) -> None:
    """Cancels a task after its first step. If it were cancelled before that, its coroutine would
    never run, and give back nothing of what it holds."""
    task.get_loop().call_soon(task.cancel)
