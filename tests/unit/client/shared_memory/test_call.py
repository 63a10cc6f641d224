"""A started request in shared memory that is sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from headrace.client import errors
from headrace.client.channel.channel import CallFailed
from headrace.client.shared_memory.call import LentCall
from headrace.v1 import inference_engine_pb2 as pb


class FakeLoan:
    """A loan whose segment the server has lost."""

    data = b""

    def read(self, _: bytes) -> object:
        raise AssertionError("there is no reply")

    def failed(self, _: errors.Error) -> tuple[pb.InferRequest, list[bytes]]:
        return pb.InferRequest(), []


class FakeCall:
    """A call that ends when the test says so."""

    def __init__(self) -> None:
        self.is_cancelled = self.is_over = False
        self._callbacks: list[Callable[[Any], object]] = []

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    def cancel(self) -> bool:
        self.is_cancelled = not self.is_over
        return self.is_cancelled

    def result(self) -> object:
        raise CallFailed(grpc.StatusCode.NOT_FOUND, "no such region")

    def end(self) -> None:
        self.is_over = True
        for each in self._callbacks:
            each(self)


def lent(again: Callable[[LentCall], FakeCall]) -> tuple[LentCall, FakeCall]:
    """A request in shared memory and its call. `again` sends it for the second time."""
    first = FakeCall()
    request: list[LentCall] = []

    def start(_: bytes) -> FakeCall:
        return again(request[0]) if request else first

    loan: Any = FakeLoan()
    request.append(LentCall(start, loan, "server"))
    return request[0], first


def test_a_cancel_while_the_request_is_sent_again_ends_it() -> None:
    second = FakeCall()

    def again(request: LentCall) -> FakeCall:
        request.cancel()
        return second

    _, first = lent(again)
    first.end()
    assert second.is_cancelled


def test_a_request_that_cannot_be_sent_again_ends_with_the_reason() -> None:
    def again(_: LentCall) -> FakeCall:
        raise errors.client_closed()

    request, first = lent(again)
    first.end()
    assert request.done()
    with pytest.raises(errors.FailedPrecondition, match="closed"):
        request.result()
