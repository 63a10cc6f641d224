"""A lane carries many small messages: several a write, several a read, none lost and none mixed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.runtime.isolation.wire.channel import Disconnected, Message, packed
from headrace.runtime.isolation.wire.lane import Lane, lanes
from tests.support.lane_messages import send


@pytest.fixture
def lane() -> Iterator[tuple[Lane, Lane]]:
    ours, theirs = lanes()
    other = Lane(theirs)
    yield ours, other
    ours.close()
    other.close()


def poll(lane: Lane) -> Message | None:
    """The next message, if all of it has come."""
    message = lane.take()
    if message is None:
        lane.read()
        message = lane.take()
    return message


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_lane_takes_messages_shorter_and_longer_than_it_reads_ahead(
    lane: tuple[Lane, Lane],
) -> None:
    ours, theirs = lane
    for size in (0, 10, 5_000, 100_000, 10):
        header = {"size": size}
        send(ours, header, (bytes(range(256)) * (size // 256 + 1),))
        message = theirs.receive()
        assert message.header == header
        assert bytes(message.body) == bytes(range(256)) * (size // 256 + 1)


def test_gathered_messages_go_at_once_and_keep_their_order_and_alignment(
    lane: tuple[Lane, Lane],
) -> None:
    ours, theirs = lane
    sizes = (0, 16, 8_000, 48, 7_984, 9_008, 32)
    for number, size in enumerate(sizes):
        ours.gather(packed({"number": number}, (bytes([number]) * size,), 0))
    assert poll(theirs) is None
    ours.flush()
    messages = [theirs.receive() for _ in sizes]
    assert not theirs.has_more()
    assert poll(theirs) is None
    for number, (size, message) in enumerate(zip(sizes, messages, strict=True)):
        assert message.header == {"number": number}
        assert bytes(message.body) == bytes([number]) * size
        assert not size or np.frombuffer(message.body, np.uint8).ctypes.data % 16 == 0


def test_a_message_that_comes_in_any_pieces_is_given_out_once_it_is_whole(
    lane: tuple[Lane, Lane],
) -> None:
    ours, theirs = lane
    data = packed({"one": 1}, (b"x" * 32,), 0) + packed({"two": 2}, (b"y" * 40_000,), 0)
    given = []
    for start in range(0, len(data), 61):
        ours._socket.send(data[start : start + 61])
        message = poll(theirs)
        if message is not None:
            given.append((message.header, bytes(message.body)))
    assert given == [({"one": 1}, b"x" * 32), ({"two": 2}, b"y" * 40_000)]


def test_descriptors_come_with_their_own_message(lane: tuple[Lane, Lane]) -> None:
    ours, theirs = lane
    reader, writer = os.pipe()
    ours.gather(packed({"number": 0}, (), 0))
    send(ours, {"number": 1}, (), (reader,))
    send(ours, {"number": 2})
    found = [theirs.receive() for _ in range(3)]
    assert [len(each.descriptors) for each in found] == [0, 1, 0]
    os.write(writer, b"through")
    (received,) = found[1].descriptors
    assert os.read(received, 100) == b"through"
    for descriptor in (reader, writer, received):
        os.close(descriptor)


def test_descriptors_that_no_message_claims_are_bounded_and_closed() -> None:
    ours, end = lanes()
    theirs = Lane(end)
    before = open_descriptors()

    def flood() -> None:
        for _ in range(10):
            socket.send_fds(ours._socket, [packed({}, (), 0)], [0] * 4)
            theirs.receive()

    with pytest.raises(Disconnected, match="descriptors"):
        flood()
    theirs.close()
    ours.close()
    assert open_descriptors() == before - 2


@pytest.mark.parametrize(
    "text", [b"[1, 2]         \n", b"{nothing        ", b"HTTP/1.1 200 OK\n\n"]
)
def test_nonsense_is_told_without_waiting(lane: tuple[Lane, Lane], text: bytes) -> None:
    ours, theirs = lane
    prefix = packed({}, (), 0)[:16] if text[0] in b"[{" else b""
    ours._socket.send(prefix[:4] + len(text).to_bytes(4, "little") + prefix[8:] + text)
    with pytest.raises(Disconnected):
        poll(theirs)


def test_the_end_of_the_connection_is_told(lane: tuple[Lane, Lane]) -> None:
    ours, theirs = lane
    ours.gather(packed({"last": 1}, (), 0))
    ours.flush()
    ours.shutdown()
    assert theirs.receive().header == {"last": 1}
    with pytest.raises(Disconnected):
        poll(theirs)
    with pytest.raises(Disconnected):
        send(ours, {})


def test_a_header_that_comes_again_is_not_parsed_again(lane: tuple[Lane, Lane]) -> None:
    ours, theirs = lane
    headers = []
    for number in range(3):
        send(ours, {"same": [1, 2]}, (bytes([number]),))
        message = theirs.receive()
        assert bytes(message.body) == bytes([number])
        headers.append(message.header)
    assert headers[0] is headers[1] is headers[2]
    for number in range(100):  # others push it out, and no memory grows
        send(ours, {"number": number})
        assert theirs.receive().header == {"number": number}
    assert len(theirs._headers) <= 16
