"""What `cancel` says of a started request, and what becomes of the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
import pytest

from headrace.client import errors
from headrace.client.balancing.sync.hedge import HedgedFuture
from headrace.client.balancing.sync.request import BalancedFuture
from headrace.client.channel.channel import CallFailed, Reply, cancelled
from headrace.client.request import OutcomeFuture

_Make: TypeAlias = "Callable[[Any], OutcomeFuture]"


class FakeCall:
    """A call that ends when the test says so."""

    def __init__(self) -> None:
        self.outcome: Reply | CallFailed | None = None
        self._ended: Callable[[FakeCall], object] | None = None

    def end(self, outcome: Reply | CallFailed) -> None:
        self.outcome = outcome
        if self._ended is not None:
            self._ended(self)

    def cancel(self) -> bool:
        if self.outcome is not None:
            return False
        self.end(cancelled())
        return True

    def add_done_callback(self, callback: Callable[[FakeCall], object]) -> None:
        self._ended = callback
        if self.outcome is not None:
            callback(self)

    def result(self) -> Reply:
        assert self.outcome is not None
        if isinstance(self.outcome, CallFailed):
            raise self.outcome
        return self.outcome


class FakeServers:
    """A client of one server, which stands for its server and for its attempts, too. Its `between`
    is called after each attempt, before the request goes on."""

    endpoint = "fake"
    closed = False

    def __init__(self) -> None:
        self.calls_made: list[FakeCall] = []
        self.between: Callable[[], object] = lambda: None
        self.group = self.route = self.calls = self

    def attempts(self, *_: object) -> FakeServers:
        return self

    def server(self) -> FakeServers:
        return self

    def start(self, *_: object, **__: object) -> FakeCall:
        self.calls_made.append(FakeCall())
        return self.calls_made[-1]

    def gave_up(self, _: object) -> bool:
        return False

    def answered(self, *_: object) -> None:
        self.between()

    def failed(self, *_: object, **__: object) -> float:
        self.between()
        return 0.0

    def released(self, _: object) -> None:
        pass


@pytest.fixture(
    params=[
        lambda servers: BalancedFuture(servers, "Infer", b"", None),
        lambda servers: HedgedFuture(servers, b"", None),
    ],
    ids=["balanced", "hedged"],
)
def make(request: pytest.FixtureRequest) -> _Make:
    made: _Make = request.param
    return made


REFUSED = CallFailed(grpc.StatusCode.UNAVAILABLE, "drains")
ANSWERED = Reply(b"", ())


def test_a_request_can_be_cancelled_while_it_is_under_way(make: _Make) -> None:
    servers = FakeServers()
    request = make(servers)
    assert request.cancel()
    assert isinstance(request.exception(0), errors.Cancelled)
    assert not request.cancel()


def test_a_request_can_be_cancelled_between_two_attempts(make: _Make) -> None:
    servers = FakeServers()
    request = make(servers)
    said: list[bool] = []
    servers.between = lambda: said.append(request.cancel())
    servers.calls_made[0].end(REFUSED)
    assert said == [True]
    assert isinstance(request.exception(0), errors.Cancelled)


def test_an_answer_that_comes_while_a_request_is_cancelled_does_not_belie_the_cancel(
    make: _Make,
) -> None:
    servers = FakeServers()
    request = make(servers)
    said: list[bool] = []
    servers.between = lambda: said.append(request.cancel())
    servers.calls_made[0].end(ANSWERED)
    assert said == [True]
    assert isinstance(request.exception(0), errors.Cancelled)


def test_an_answered_request_can_no_longer_be_cancelled(make: _Make) -> None:
    servers = FakeServers()
    request = make(servers)
    servers.calls_made[0].end(ANSWERED)
    assert not request.cancel()
    assert request.result(0) == ANSWERED
