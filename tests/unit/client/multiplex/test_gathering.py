"""Which requests share a message, and whose each result is."""

from __future__ import annotations

import random

import pytest
from google.rpc import status_pb2
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.multiplex.gathering import (
    HEAVY_BYTES,
    HEAVY_REQUESTS,
    MAX_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_REQUESTS,
    MAX_REQUEST_BYTES,
    NEAR_SECONDS,
    UNREAD_MESSAGES,
    Gathering,
    Item,
    coarse,
)
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import CodecError
from headrace.wire.stream import StreamLimits, StreamReply, StreamResult

LIMITS = StreamLimits(in_flight=256, message_bytes=64 << 20)
FAR = 1.0
"""A way of a second, on which nothing waits for what the server has read."""


def request(name: str = "net", *, pad: int = 0) -> bytes:
    return pb.InferRequest(
        network=name, attachments=[bytes(pad)] if pad else []
    ).SerializeToString()


def answered(limits: StreamLimits = LIMITS, way: float = FAR) -> Gathering[Item]:
    """A stream whose server has answered the first question after `way` seconds."""
    gathering: Gathering[Item] = Gathering("p")
    assert sent(gathering, 0.0).ask_limits
    gathering.receive(StreamReply([], limits, 1), way)
    return gathering


def sent(gathering: Gathering[Item], now: float = FAR) -> pb.InferStreamRequest:
    data = gathering.next_message(now)
    assert data is not None
    return pb.InferStreamRequest.FromString(data)


def add(gathering: Gathering[Item], *data: bytes) -> list[Item]:
    items = [Item(each) for each in data]
    for item in items:
        gathering.add(item)
    return items


def result(item: Item, *, heavy: bool = False) -> StreamResult:
    attachments = [bytes(HEAVY_BYTES)] if heavy else []
    return StreamResult(item.id, pb.InferReply(id=item.id), attachments)


def test_nothing_is_taken_before_the_server_has_answered_the_question() -> None:
    gathering: Gathering[Item] = Gathering()
    assert not gathering.takes(request())
    assert sent(gathering, 0.0).ask_limits
    assert gathering.next_message(0.0) is None
    assert not gathering.takes(request())
    gathering.receive(StreamReply([], LIMITS, 1), FAR)
    assert gathering.takes(request())


def test_what_waits_goes_together_in_order() -> None:
    gathering = answered()
    items = add(gathering, request("a"), request("b"), request("c"))
    message = sent(gathering)
    assert [each.network for each in message.requests] == ["a", "b", "c"]
    assert [each.id for each in message.requests] == [item.id for item in items]
    assert len({item.id for item in items}) == 3
    assert gathering.next_message(FAR) is None


def test_a_request_goes_with_its_timeout_and_its_trace() -> None:
    gathering = answered()
    trace = {"traceparent": "00-1-2-01", "tracestate": "a=1"}
    gathering.add(Item(request(), 1.0, trace))
    gathering.add(Item(request(), None))
    gathering.add(Item(request(), 1e9))
    timed, timeless, endless = sent(gathering).requests
    assert (timed.timeout_seconds, timed.traceparent, timed.tracestate) == (1.0, "00-1-2-01", "a=1")
    assert (timeless.timeout_seconds, timeless.traceparent) == (0.0, "")
    assert endless.timeout_seconds == 0.0, "the server takes a week at most"


@pytest.mark.parametrize("size", [0, 17_000, 30_000])
def test_fields_are_in_the_order_of_their_numbers_by_which_the_server_knows_a_request_again(
    size: int,
) -> None:
    gathering = answered()
    trace = {"traceparent": "00-1-2-01", "tracestate": "a=1"}
    gathering.add(Item(request(pad=size), 1.0, trace))
    data = gathering.next_message(FAR)
    assert data == sent_again(data)


def sent_again(data: bytes | None) -> bytes:
    assert data is not None
    return pb.InferStreamRequest.FromString(data).SerializeToString()


@pytest.mark.parametrize("name", ["", "net", "n" * 200])
def test_a_request_is_the_same_whatever_its_network_is_called(name: str) -> None:
    gathering = answered()
    (item,) = add(gathering, pb.InferRequest(network=name, priority=3).SerializeToString())
    assert list(sent(gathering).requests) == [pb.InferRequest(network=name, id=item.id, priority=3)]


def test_the_server_knows_requests_again() -> None:
    """It compares bytes with those that protobuf itself would write."""
    gathering = answered()
    tensor = pb.Tensor(dtype=pb.DataType.FLOAT, shape=[1], data=bytes(4))
    data = pb.InferRequest(network="net", inputs=[pb.Value(name="x", tensor=tensor)], priority=1)
    gathering.add(Item(data.SerializeToString(), 60.0))
    message = gathering.next_message(FAR)
    assert message is not None
    parsed = pb.InferStreamRequest.FromString(message)
    assert message == parsed.SerializeToString()


@given(st.floats(1e-6, 1e6))
def test_a_timeout_is_rounded_up_a_little(seconds: float) -> None:
    assert seconds <= coarse(seconds) <= seconds * 1.04


def test_timeouts_that_differ_by_microseconds_are_the_same_to_the_server() -> None:
    assert {coarse(60.0 - each * 1e-6) for each in range(100)} == {60.0}


def test_a_message_has_at_most_so_many_requests_and_bytes() -> None:
    gathering = answered()
    add(gathering, *[request()] * (MAX_MESSAGE_REQUESTS + 1))
    assert len(sent(gathering).requests) == MAX_MESSAGE_REQUESTS
    assert len(sent(gathering).requests) == 1
    large = request(pad=MAX_REQUEST_BYTES - 100)
    add(gathering, *[large] * 10)
    message = sent(gathering)
    assert len(message.requests) == MAX_MESSAGE_BYTES // len(large)
    assert message.ByteSize() <= MAX_MESSAGE_BYTES + 1024


def test_a_server_of_small_messages_gets_small_ones() -> None:
    gathering = answered(StreamLimits(256, 4096))
    assert not gathering.takes(request(pad=3000))
    assert gathering.takes(request(pad=1000))
    add(gathering, *[request(pad=1000)] * 5)
    while (data := gathering.next_message(FAR)) is not None:
        assert len(data) <= 4096 + 256


def test_no_more_are_in_flight_than_the_server_reads() -> None:
    gathering = answered(StreamLimits(2))
    items = add(gathering, request(), request())
    assert not gathering.takes(request())
    sent(gathering)
    gathering.receive(StreamReply([result(items[1])]), FAR)
    assert gathering.takes(request())


def test_the_bytes_in_flight_are_bounded() -> None:
    gathering = answered(StreamLimits(1 << 20))
    data = request(pad=MAX_REQUEST_BYTES - 100)
    count = 0
    while gathering.takes(data):
        add(gathering, data)
        count += 1
    assert MAX_BYTES // 2 < count * len(data) <= MAX_BYTES
    assert not gathering.takes(request(pad=MAX_REQUEST_BYTES)), "it is too large to share"


def test_on_a_short_way_requests_gather_until_the_server_has_read() -> None:
    gathering = answered(way=NEAR_SECONDS)
    for _ in range(UNREAD_MESSAGES):
        add(gathering, request())
        sent(gathering)
    add(gathering, request(), request())
    assert gathering.next_message(FAR) is None
    gathering.receive(StreamReply([], None, 2), FAR)
    assert len(sent(gathering).requests) == 2


def test_on_a_long_way_requests_do_not_wait_for_the_server() -> None:
    gathering = answered(way=NEAR_SECONDS * 2)
    for _ in range(10):
        add(gathering, request())
        assert len(sent(gathering, 1e9).requests) == 1


def test_a_cancel_never_waits() -> None:
    gathering = answered(way=0.0)
    (first, *_) = add(gathering, request())
    for _ in range(UNREAD_MESSAGES):
        sent(gathering)
        add(gathering, request())
    assert gathering.next_message(FAR) is None
    assert gathering.give_up(first)
    message = sent(gathering)
    assert (list(message.cancel), len(message.requests)) == ([first.id], 0)


def test_a_request_that_is_given_up_before_it_is_sent_is_never_sent() -> None:
    gathering = answered()
    first, second = add(gathering, request("a"), request("b"))
    assert gathering.give_up(first)
    assert not gathering.give_up(first)
    message = sent(gathering)
    assert [each.network for each in message.requests] == ["b"]
    assert not message.cancel
    assert gathering.in_flight == [second]


def test_a_request_that_is_given_up_counts_until_the_server_has_answered() -> None:
    gathering = answered(StreamLimits(1))
    (item,) = add(gathering, request())
    sent(gathering)
    assert gathering.give_up(item)
    assert list(sent(gathering).cancel) == [item.id]
    assert not gathering.takes(request())
    assert gathering.receive(StreamReply([result(item)]), FAR) == []
    assert gathering.is_idle
    assert gathering.takes(request())
    assert not gathering.give_up(item)


def test_a_result_of_no_request_breaks_the_protocol() -> None:
    gathering = answered()
    (item,) = add(gathering, request())
    sent(gathering)
    gathering.receive(StreamReply([result(item)]), FAR)
    for identifier in (item.id, "other"):
        with pytest.raises(CodecError, match="not in flight"):
            gathering.receive(StreamReply([StreamResult(identifier)]), FAR)


def test_a_network_of_heavy_replies_does_without_the_stream_for_a_while() -> None:
    gathering = answered()
    (item,) = add(gathering, request("heavy"))
    sent(gathering)
    gathering.receive(StreamReply([result(item, heavy=True)]), FAR)
    assert gathering.takes(request("light"))
    for _ in range(HEAVY_REQUESTS):
        assert not gathering.takes(request("heavy"))
    assert gathering.takes(request("heavy"))


def test_in_doubt_the_server_is_asked_again() -> None:
    gathering = answered()
    gathering.ask()
    assert not gathering.takes(request())
    assert sent(gathering).ask_limits
    gathering.receive(StreamReply([], LIMITS, 2), FAR)
    assert gathering.takes(request())


def test_the_end_returns_what_somebody_waits_for() -> None:
    gathering = answered()
    first, second, third = add(gathering, request(), request(), request())
    sent(gathering)
    gathering.give_up(second)
    (fourth,) = add(gathering, request())
    assert gathering.end() == [first, third, fourth]
    assert [item.sent for item in (first, third, fourth)] == [True, True, False]
    assert gathering.is_idle


@pytest.mark.parametrize("seed", range(20))
def test_every_request_gets_its_own_result_whatever_the_order(seed: int) -> None:
    """A server that reads late, answers in any order, and answers what was cancelled."""
    draw = random.Random(seed)
    gathering = answered(StreamLimits(draw.choice([1, 8, 256])), way=draw.choice([0.0, FAR]))
    messages: list[pb.InferStreamRequest] = []
    at_server: list[tuple[str, str]] = []
    mine: dict[str, Item] = {}
    settled: dict[str, str] = {}
    given_up: set[str] = set()
    read = 1
    for number in range(400):
        action = draw.random()
        if action < 0.4 and gathering.takes(request(str(number))):
            item = Item(request(str(number)))
            gathering.add(item)
            mine[item.id] = item
        elif action < 0.6 and (data := gathering.next_message(FAR)) is not None:
            messages.append(pb.InferStreamRequest.FromString(data))
        elif action < 0.7 and messages:
            read += 1
            at_server += [(each.id, each.network) for each in messages.pop(0).requests]
        elif action < 0.75 and mine:
            chosen = draw.choice(sorted(mine))
            if gathering.give_up(mine[chosen]):
                given_up.add(chosen)
        else:
            draw.shuffle(at_server)
            count = draw.randrange(len(at_server) + 1)
            results = [
                StreamResult(each, error=status_pb2.Status(code=5, message=network))
                for each, network in at_server[:count]
            ]
            del at_server[:count]
            for item, found in gathering.receive(StreamReply(results, None, read), FAR):
                assert found.error is not None
                assert item.id == found.id
                assert item.id not in settled, "settled twice"
                settled[item.id] = found.error.message
    for identifier, network in settled.items():
        assert request(network) == mine[identifier].data
    assert not settled.keys() & given_up
    waits = {item.id for item in gathering.in_flight}
    assert settled.keys() | given_up | waits == mine.keys()
