"""Messages between processes arrive whole or not at all, in order, and are bounded."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.ipc import link as module
from headrace.ipc.link import Disconnected, Link, Message, TooLong, links, packed
from tests.support.link_messages import send


@pytest.fixture
def link() -> Iterator[tuple[Link, Link]]:
    ours, theirs = links()
    other = Link(theirs)
    yield ours, other
    ours.close()
    other.close()


def poll(link: Link) -> Message | None:
    """The next message, if all of it has come."""
    message = link.take()
    if message is None:
        link.read()
        message = link.take()
    return message


def open_descriptors() -> set[str]:
    listed = {each.name for each in Path("/proc/self/fd").iterdir()}
    return {name for name in listed if Path("/proc/self/fd", name).exists()}


def test_a_link_takes_messages_shorter_and_longer_than_it_reads_ahead(
    link: tuple[Link, Link],
) -> None:
    ours, theirs = link
    for size in (0, 10, 5_000, 100_000, 10):
        header = {"size": size}
        send(ours, header, (bytes(range(256)) * (size // 256 + 1),))
        message = theirs.receive()
        assert message.header == header
        assert bytes(message.body) == bytes(range(256)) * (size // 256 + 1)


def test_gathered_messages_go_at_once_and_keep_their_order_and_alignment(
    link: tuple[Link, Link],
) -> None:
    ours, theirs = link
    sizes = (0, 16, 8_000, 48, 7_984, 9_008, 32)
    for number, size in enumerate(sizes):
        ours.gather(packed({"number": number}, (bytes([number]) * size,)))
    assert poll(theirs) is None
    ours.send()
    messages = [theirs.receive() for _ in sizes]
    assert not theirs.has_more()
    assert poll(theirs) is None
    for number, (size, message) in enumerate(zip(sizes, messages, strict=True)):
        assert message.header == {"number": number}
        assert bytes(message.body) == bytes([number]) * size
        assert not size or np.frombuffer(message.body, np.uint8).ctypes.data % 16 == 0


def test_a_message_that_comes_in_any_pieces_is_given_out_once_it_is_whole(
    link: tuple[Link, Link],
) -> None:
    ours, theirs = link
    data = packed({"one": 1}, (b"x" * 32,)) + packed({"two": 2}, (b"y" * 40_000,))
    given = []
    for start in range(0, len(data), 61):
        ours._socket.send(data[start : start + 61])
        message = poll(theirs)
        if message is not None:
            given.append((message.header, bytes(message.body)))
    assert given == [({"one": 1}, b"x" * 32), ({"two": 2}, b"y" * 40_000)]


def test_descriptors_come_with_their_own_message(link: tuple[Link, Link]) -> None:
    ours, theirs = link
    reader, writer = os.pipe()
    ours.gather(packed({"number": 0}))
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
    ours, end = links()
    theirs = Link(end)
    before = open_descriptors()

    def flood() -> None:
        for _ in range(10):
            socket.send_fds(ours._socket, [packed({})], [0] * 4)
            theirs.receive()

    with pytest.raises(Disconnected, match="descriptors"):
        flood()
    theirs.close()
    ours.close()
    assert open_descriptors() < before


def test_descriptors_beyond_those_of_a_message_end_the_link_and_are_closed(
    link: tuple[Link, Link],
) -> None:
    ours, theirs = link
    before = open_descriptors()
    socket.send_fds(ours._socket, [packed({}, (), 200)], [0] * 200)
    with pytest.raises(Disconnected, match="descriptors"):
        theirs.receive()
    theirs.close()
    assert open_descriptors() < before


def test_descriptors_that_came_with_no_message_are_discarded_as_their_owner_wants() -> None:
    ours, end = links()
    discarded: list[int] = []
    theirs = Link(end, discard=discarded.append)
    socket.send_fds(ours._socket, [b"hrw2"], [0, 0])
    theirs.read()
    theirs.close()
    ours.close()
    assert len(discarded) == 2
    for each in discarded:
        os.close(each)


@pytest.mark.parametrize(
    "prefix",
    [
        (b"HTTP", 2, 0, 0),
        (b"hrw2", module.MAX_HEADER_BYTES + 1, module.MAX_BODY_BYTES, 0),
        (b"hrw2", 2, 2**32 - 1, 0),
        (b"hrw2", 2, 0, 3),
    ],
    ids=["magic", "header", "body", "descriptors"],
)
def test_what_is_no_message_is_refused_before_memory_is_reserved(
    link: tuple[Link, Link], prefix: tuple[bytes, int, int, int]
) -> None:
    ours, theirs = link
    ours._socket.send(module._PREFIX.pack(*prefix) + b"{}")
    with pytest.raises(Disconnected):
        poll(theirs)
    assert len(theirs._buffer) < 2**20


def test_a_link_takes_no_longer_messages_than_its_owner_wants() -> None:
    ours, end = links()
    theirs = Link(end, most_bytes=100)
    send(ours, {"short": 1})
    assert theirs.receive().header == {"short": 1}
    send(ours, {"long": "x" * 100})
    with pytest.raises(Disconnected):
        theirs.receive()
    ours.close()
    theirs.close()


@pytest.mark.parametrize("text", [b"[1, 2]", b"{nothing", b"[" * 5000, b"\xff\xfe{}"])
def test_a_header_that_is_no_object_is_refused_without_waiting_and_its_descriptors_closed(
    link: tuple[Link, Link], text: bytes
) -> None:
    ours, theirs = link
    before = open_descriptors()
    socket.send_fds(ours._socket, [module._PREFIX.pack(b"hrw2", len(text), 0, 1) + text], [0])
    with pytest.raises(Disconnected):
        poll(theirs)
    theirs.close()
    assert open_descriptors() < before


def test_a_message_that_is_cut_short_is_none(link: tuple[Link, Link]) -> None:
    ours, theirs = link
    ours._socket.send(module._PREFIX.pack(b"hrw2", 100, 0, 0) + b'{"half":')
    assert poll(theirs) is None
    ours.shutdown()
    with pytest.raises(Disconnected):
        theirs.receive()


def test_a_message_larger_than_the_socket_holds_arrives(link: tuple[Link, Link]) -> None:
    ours, theirs = link
    header = {"layers": ["layer" * 10] * 40_000}
    sender = threading.Thread(target=send, args=(ours, header, (b"y" * 1_000_000,)))
    sender.start()
    message = theirs.receive()
    sender.join()
    assert message.header == header
    assert bytes(message.body) == b"y" * 1_000_000


def test_messages_of_many_threads_do_not_mix(link: tuple[Link, Link]) -> None:
    ours, theirs = link
    senders = [
        threading.Thread(target=send, args=(ours, {"sender": at}, (bytes([at]) * 100_000,)))
        for at in range(8)
    ]
    for sender in senders:
        sender.start()
    seen = set()
    for _ in senders:
        message = theirs.receive()
        seen.add(message.header["sender"])
        assert set(bytes(message.body)) == {message.header["sender"]}
    for sender in senders:
        sender.join()
    assert seen == set(range(8))


def test_a_message_that_nobody_would_take_is_not_packed() -> None:
    with pytest.raises(TooLong, match="bytes"):
        packed({}, (bytes(module.MAX_BODY_BYTES + 1),))


@pytest.mark.parametrize("within", [None, 0.0])
def test_a_sender_that_may_not_wait_learns_that_the_other_end_takes_nothing(
    within: float | None,
) -> None:
    ours, theirs = links(blocking=within is not None)

    sent = 0

    def flood() -> None:
        nonlocal sent
        while True:
            ours.send(packed({"cancel": 1}), within=within)
            sent += 1

    with pytest.raises(BlockingIOError):
        flood()
    other = Link(theirs)
    for _ in range(sent):  # all of them are whole
        assert other.receive().header == {"cancel": 1}
    assert sent
    assert poll(other) is None
    ours.close()
    other.close()


def test_the_end_of_the_connection_is_told(link: tuple[Link, Link]) -> None:
    ours, theirs = link
    ours.gather(packed({"last": 1}))
    ours.send()
    ours.shutdown()
    assert theirs.receive().header == {"last": 1}
    with pytest.raises(Disconnected):
        poll(theirs)
    with pytest.raises(Disconnected):
        send(ours, {})


def test_a_header_that_comes_again_is_not_parsed_again(link: tuple[Link, Link]) -> None:
    ours, theirs = link
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
