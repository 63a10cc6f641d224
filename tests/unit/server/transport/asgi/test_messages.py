"""gRPC's framing: messages cut from bytes that come in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.errors import InvalidArgument, ResourceExhausted, Unimplemented
from headrace.server.transport.asgi.messages import Messages, frame


def taken(messages: Messages) -> list[bytes]:
    found = []
    while (message := messages.take()) is not None:
        found.append(message)
    return found


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_messages_come_out_whole_and_in_order_however_the_bytes_are_cut(
    sent: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(frame(each) for each in sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    edges = [0, *sorted(cuts), len(stream)]
    messages, found = Messages(64), []
    for start, end in pairwise(edges):
        messages.feed(stream[start:end])
        if data.draw(st.booleans()):  # a reader does not always come at once
            found += taken(messages)
    assert [*found, *taken(messages)] == sent
    assert messages.held == 0


def test_a_message_that_has_not_come_whole_waits() -> None:
    messages = Messages(64)
    messages.feed(frame(b"abc")[:-1])
    assert messages.take() is None
    assert messages.held == 7


def test_the_largest_message_is_read() -> None:
    messages = Messages(3)
    messages.feed(frame(b"abc"))
    assert messages.take() == b"abc"


def test_a_message_that_is_too_large_is_refused_before_its_bytes_have_come() -> None:
    messages = Messages(3)
    messages.feed(frame(b"abcd")[:5])
    with pytest.raises(ResourceExhausted, match=r"4 bytes .* 3 .*--max-message-bytes"):
        messages.take()


def test_a_compressed_message_is_refused() -> None:
    messages = Messages(64)
    messages.feed(b"\1\0\0\0\1x")
    with pytest.raises(Unimplemented, match="without compression"):
        messages.take()


def test_bytes_that_are_not_grpc_are_refused() -> None:
    messages = Messages(64)
    messages.feed(b"GET / HTTP/1.1")
    with pytest.raises(InvalidArgument, match="gRPC client"):
        messages.take()


def test_what_lacks_is_known_from_the_length() -> None:
    messages = Messages(64)
    assert messages.lacking == 0
    messages.feed(frame(b"abcdef")[:7])
    assert messages.lacking == 4
    messages.feed(b"cdef")
    assert messages.lacking == 0
