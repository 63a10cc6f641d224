"""The shell of the shared stream for threads: which requests its writer waits for."""

from __future__ import annotations

import time

import pytest

from headrace.client.multiplex.gathering import MAX_MESSAGE_REQUESTS, Item
from headrace.client.multiplex.threads import stream as module
from headrace.client.multiplex.threads.stream import Shared, Stream
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.stream import (
    EncodedResult,
    StreamLimits,
    parse_infer_stream_reply,
    parse_infer_stream_request,
    serialize_infer_stream_reply,
)


@pytest.fixture
def stream() -> Stream:
    """A stream that nobody has begun."""
    made = Stream(Shared(time.monotonic), lambda *_, **__: None, ())
    made.gathering.limits = StreamLimits(1000, 0)
    return made


def item() -> Item:
    return Item(pb.InferRequest(network="n").SerializeToString())


def first_message(stream: Stream, monkeypatch: pytest.MonkeyPatch, others: list[Item]) -> int:
    """How many requests the first message has if another thread sends one in each of its turns."""

    def send(each: Item) -> None:
        with stream._lock:
            assert stream.add(each)

    def turn() -> None:
        if others:
            send(others.pop())

    monkeypatch.setattr(module, "_let_others_run", turn)
    send(item())
    return len(parse_infer_stream_request(next(stream._messages())).requests)


@pytest.mark.parametrize("others", [0, 1, 5])
def test_threads_that_are_about_to_send_a_request_share_the_next_message(
    stream: Stream, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert first_message(stream, monkeypatch, [item() for _ in range(others)]) == others + 1


def test_a_request_after_a_result_that_came_alone_waits_for_nobody(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = item()
    with stream._lock:
        assert stream.add(first)
    messages = stream._messages()
    next(messages)
    reply = parse_infer_stream_reply(serialize_infer_stream_reply([EncodedResult(first.id, b"")]))
    stream.gathering.receive(reply, 0.0)
    monkeypatch.setattr(module, "_let_others_run", lambda: pytest.fail("it lets others run"))
    with stream._lock:
        assert stream.add(item())
    assert len(parse_infer_stream_request(next(messages)).requests) == 1


def test_a_full_message_waits_for_nobody(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [item() for _ in range(2 * MAX_MESSAGE_REQUESTS)]
    assert first_message(stream, monkeypatch, others) == MAX_MESSAGE_REQUESTS
    assert len(others) == MAX_MESSAGE_REQUESTS + 1
