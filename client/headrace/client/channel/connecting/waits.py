"""What connecting waits for. It is written once, as generators that yield what they wait for; a
thread runs them by `run`, and asyncio by `run_on_loop`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import select
import socket
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from headrace.client import steps as steps_of_both

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ready:
    """Wait until one of these sockets can be read or written. Those that can are sent back; none
    if the time is up.

    Attributes:
        until: in seconds of the monotonic clock.
    """

    until: float
    reading: Sequence[socket.socket] = ()
    writing: Sequence[socket.socket] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """Wait until all of these have ended, or until the time is up."""

    until: float
    futures: Sequence[concurrent.futures.Future[Any]]


Wait: TypeAlias = Ready | Done
Steps: TypeAlias = Generator[Wait, Any, T]

_LOOK_SECONDS: Final = 0.25


class GivenUp(Exception):
    """Nobody wants the steps to go on."""


def run(steps: Steps[T], is_wanted: Callable[[], bool] = lambda: True) -> T:
    """Runs steps to their end on this thread. Returns or raises what they do.

    Args:
        is_wanted: whether they shall go on. It is asked four times a second.

    Raises:
        GivenUp: they shall not.
    """
    return steps_of_both.run(steps, partial(_await, is_wanted))


async def run_on_loop(steps: Steps[T]) -> T:
    """Does the same as `run`, and leaves the loop free."""
    return await steps_of_both.run_on_loop(steps, _await_on_loop)


def _left(wait: Wait) -> float:
    return max(wait.until - time.monotonic(), 0.0)


def _await(is_wanted: Callable[[], bool], wait: Wait) -> list[socket.socket]:
    while True:
        if not is_wanted():
            raise GivenUp
        left = _left(wait)
        ready, is_done = _waited(wait, min(left, _LOOK_SECONDS))
        if ready or is_done or left <= _LOOK_SECONDS:
            return ready


def _waited(wait: Wait, seconds: float) -> tuple[list[socket.socket], bool]:
    """Waits for some time. Returns the sockets that are ready, and whether all futures are."""
    if isinstance(wait, Done):
        return [], not concurrent.futures.wait(wait.futures, seconds).not_done
    poll = select.poll()  # not select(), which takes no descriptor above 1023
    by_descriptor = {}
    for sockets, event in ((wait.reading, select.POLLIN), (wait.writing, select.POLLOUT)):
        for each in sockets:
            poll.register(each, event)
            by_descriptor[each.fileno()] = each
    ready = poll.poll(seconds * 1000)
    return [by_descriptor[descriptor] for descriptor, _ in ready], False


async def _await_on_loop(wait: Wait) -> list[socket.socket]:
    ready: list[socket.socket] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(_left(wait)):
            if isinstance(wait, Done):
                await _all_done(wait.futures)
            else:
                await _any_ready(wait, ready)
    return ready


async def _all_done(futures: Sequence[concurrent.futures.Future[Any]]) -> None:
    loop, one = asyncio.get_running_loop(), asyncio.Event()

    def note(_: object) -> None:
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(one.set)

    for future in futures:
        future.add_done_callback(note)
    while not all(future.done() for future in futures):
        await one.wait()
        one.clear()


async def _any_ready(wait: Ready, ready: list[socket.socket]) -> None:
    loop, one = asyncio.get_running_loop(), asyncio.Event()

    def note(each: socket.socket) -> None:
        if each not in ready:
            ready.append(each)
        one.set()

    for each in wait.reading:
        loop.add_reader(each, note, each)
    for each in wait.writing:
        loop.add_writer(each, note, each)
    try:
        await one.wait()
    finally:
        for each in wait.reading:
            loop.remove_reader(each)
        for each in wait.writing:
            loop.remove_writer(each)
