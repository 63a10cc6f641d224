"""When a session is told to give back memory that nobody uses."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from headrace.plugins.cpu.backend.session import OnnxRuntimeSession
from headrace.plugins.cpu.running.arena import Arena
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.timer import Timer
from headrace.testing.occupied import eventually

LARGE = 40 * 2**20


class Looks:
    """A timer whose time comes when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []  # for the next second
        self.idle: list[Callable[[], object]] = []  # for the next minute

    def schedule(self, when: float, callback: Callable[[], object], _: float) -> None:
        soon = when < time.monotonic() + 30
        (self.waiting if soon else self.idle).append(callback)

    def come(self) -> None:
        for each in [self.waiting.pop(0) for _ in [*self.waiting]]:
            each()

    def minute(self) -> None:
        self.idle.pop()()


class Counted:
    def __init__(self) -> None:
        self.shrunk = 0

    def shrink(self) -> None:
        self.shrunk += 1


class Done:
    """A job that has run."""

    def __init__(self, given: int, made: int) -> None:
        self.inputs = {"x": np.empty(given, np.uint8)}
        self.outputs = {"y": np.empty(made, np.uint8)}


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def session() -> Counted:
    return Counted()


@pytest.fixture
def arena(looks: Looks, session: Counted) -> Arena:
    return Arena(cast(Timer, looks), [weakref.ref(cast(OnnxRuntimeSession, session))])


def ran(arena: Arena, given: int, made: int) -> Any:
    job: Any = Done(given, made)
    arena.used(cast(Job, job))
    return job.outputs["y"]


def test_memory_is_given_back_when_a_large_reply_is_gone_and_not_before(
    arena: Arena, looks: Looks, session: Counted
) -> None:
    reply = ran(arena, 1, LARGE)
    looks.come()
    assert session.shrunk == 0
    assert looks.waiting
    del reply
    looks.come()
    eventually(lambda: session.shrunk == 1, "the session is shrunk")
    assert not looks.waiting


def test_memory_of_a_large_request_is_given_back(
    arena: Arena, looks: Looks, session: Counted
) -> None:
    ran(arena, LARGE, 1)
    looks.come()
    eventually(lambda: session.shrunk == 1, "the session is shrunk")


def test_small_requests_are_not_noted(arena: Arena, looks: Looks) -> None:
    ran(arena, 1000, 1000)
    assert not looks.waiting


def test_replies_that_go_one_by_one_are_given_back_together(
    arena: Arena, looks: Looks, session: Counted
) -> None:
    replies = [ran(arena, 1, LARGE // 4) for _ in range(4)]
    while replies:
        assert session.shrunk == 0
        replies.pop()
        looks.come()
    eventually(lambda: session.shrunk == 1, "the session is shrunk")


def test_a_look_that_is_still_to_come_keeps_no_session(looks: Looks) -> None:
    session = Counted()
    arena = Arena(cast(Timer, looks), [weakref.ref(cast(OnnxRuntimeSession, session))])
    ran(arena, 1, LARGE)
    gone = weakref.ref(session)
    del session
    assert gone() is None
    looks.come()
    arena.shrink()


def test_memory_is_given_back_later_if_the_system_has_no_thread_now(
    arena: Arena, looks: Looks, session: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran(arena, 1, LARGE)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        looks.come()
    looks.come()
    eventually(lambda: session.shrunk == 1, "the session is shrunk")


def test_a_network_without_requests_for_a_minute_gives_memory_back_once(
    arena: Arena, looks: Looks, session: Counted
) -> None:
    ran(arena, 1000, 1000)
    ran(arena, 1000, 1000)
    looks.minute()
    assert session.shrunk == 0
    looks.minute()
    eventually(lambda: session.shrunk == 1, "the session is shrunk")
    assert not looks.idle
    ran(arena, 1000, 1000)
    assert looks.idle


def test_an_idle_network_gives_memory_back_a_minute_later_if_the_system_has_no_thread_now(
    arena: Arena, looks: Looks, session: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran(arena, 1, 1)
    looks.minute()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        looks.minute()
    looks.minute()
    eventually(lambda: session.shrunk == 1, "the session is shrunk")
