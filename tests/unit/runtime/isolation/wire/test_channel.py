"""Messages between server and worker arrive whole or not at all, and are bounded."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.runtime.errors import Internal
from headrace.runtime.isolation.wire import channel as module
from headrace.runtime.isolation.wire.channel import Channel, Disconnected, channels


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = channels()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_message_arrives_with_header_body_and_descriptors(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    reader, writer = os.pipe()
    one.send({"method": "lane", "número": [1, None, 2.5]}, (b"abc", memoryview(b"de")), (reader,))
    message = other.receive()
    assert message.header == {"method": "lane", "número": [1, None, 2.5]}
    assert bytes(message.body) == b"abcde"
    (received,) = message.descriptors
    os.write(writer, b"through")
    assert os.read(received, 100) == b"through"
    for descriptor in (reader, writer, received):
        os.close(descriptor)


def test_messages_keep_their_order_and_bounds(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    for number in range(50):
        one.send({"number": number}, (b"x" * number,))
    for number in range(50):
        message = other.receive()
        assert (message.header["number"], len(message.body)) == (number, number)


def test_a_message_larger_than_the_socket_holds_arrives(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    header = {"layers": ["layer" * 10] * 40_000}
    sender = threading.Thread(target=one.send, args=(header, (b"y" * 1_000_000,)))
    sender.start()
    message = other.receive()
    sender.join()
    assert message.header == header
    assert bytes(message.body) == b"y" * 1_000_000


def test_messages_of_many_threads_do_not_mix(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    senders = [
        threading.Thread(target=one.send, args=({"sender": at}, (bytes([at]) * 100_000,)))
        for at in range(8)
    ]
    for sender in senders:
        sender.start()
    seen = set()
    for _ in senders:
        message = other.receive()
        seen.add(message.header["sender"])
        assert set(bytes(message.body)) == {message.header["sender"]}
    for sender in senders:
        sender.join()
    assert seen == set(range(8))


def test_the_body_lies_as_arrays_want_it(ends: tuple[Channel, Channel]) -> None:
    import numpy as np

    one, other = ends
    for length in range(40):
        one.send({"": "a" * length}, (bytes(64),))
        body = np.frombuffer(other.receive().body, np.uint8)
        assert body.ctypes.data % 16 == 0


def test_the_end_of_the_connection_is_told(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.shutdown()
    with pytest.raises(Disconnected):
        other.receive()
    with pytest.raises(Disconnected):
        other.send({})
    one.shutdown()


def test_a_message_that_is_cut_short_is_none(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one._socket.send(module._PREFIX.pack(b"hrw2", 100, 0, 0) + b'{"half":')
    one.shutdown()
    with pytest.raises(Disconnected):
        other.receive()


@pytest.mark.parametrize(
    "prefix",
    [
        (b"HTTP", 2, 0, 0),
        (b"hrw2", module.MAX_HEADER_BYTES + 1, 0, 0),
        (b"hrw2", 2, module.MAX_BODY_BYTES + 1, 0),
        (b"hrw2", 2, 0, 3),
    ],
    ids=["magic", "header", "body", "descriptors"],
)
def test_what_is_no_message_is_refused_before_memory_is_reserved(
    ends: tuple[Channel, Channel], prefix: tuple[bytes, int, int, int]
) -> None:
    one, other = ends
    one._socket.send(module._PREFIX.pack(*prefix) + b"{}")
    with pytest.raises(Disconnected):
        other.receive()


@pytest.mark.parametrize("text", [b"[1, 2]", b"{nothing", b"[" * 5000, b"\xff\xfe{}"])
def test_a_header_that_is_no_object_is_refused_and_its_descriptors_closed(
    ends: tuple[Channel, Channel], text: bytes
) -> None:
    one, other = ends
    before = open_descriptors()
    socket.send_fds(one._socket, [module._PREFIX.pack(b"hrw2", len(text), 0, 1) + text], [0])
    with pytest.raises(Disconnected):
        other.receive()
    assert open_descriptors() == before


def test_a_message_that_nobody_would_take_is_not_sent(ends: tuple[Channel, Channel]) -> None:
    one, _ = ends
    with pytest.raises(Internal, match="bytes"):
        one.send({}, (bytes(module.MAX_BODY_BYTES + 1),))
