"""Whatever the other end of a watched lane does, each request is answered once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import Queue
from typing import Any

import pytest

from headrace.ipc.link import CREDIT_BYTES, Disconnected, Link, Message, links, packed
from headrace.runtime.errors import Unavailable
from headrace.runtime.isolation.server.lanes import WatchedLanes
from tests.support.link_messages import send
from tests.support.patience import PATIENCE_SECONDS
from tests.support.thread_readers import ThreadReaders, thread_readers


class Other:
    """Makes connections, and keeps the other ends."""

    def __init__(self) -> None:
        self.ends: list[Link] = []

    def connect(self) -> Link:
        ours, theirs = links()
        self.ends.append(Link(theirs))
        return ours


class Answers:
    """What the requests got, with the thread that brought it."""

    def __init__(self) -> None:
        self._found: Queue[tuple[int, Any, threading.Thread]] = Queue()

    def take(self, number: int) -> Any:
        def take(message: Message | None) -> None:
            header = None if message is None else message.header
            self._found.put((number, header, threading.current_thread()))

        return take

    def next(self) -> tuple[int, Any, threading.Thread]:
        return self._found.get(timeout=PATIENCE_SECONDS)

    def assert_no_more(self) -> None:
        assert self._found.empty()


@pytest.fixture
def readers() -> Iterator[ThreadReaders]:
    with thread_readers() as found:
        yield found


@pytest.fixture
def other(readers: ThreadReaders) -> Iterator[Other]:
    found = Other()
    yield found
    for end in found.ends:
        end.close()


def read_to_the_end(end: Link) -> None:
    with suppress(Disconnected):
        while True:
            end.receive()


def requests(*numbers: int) -> bytes:
    return b"".join(packed({"number": number}, [bytes([number]) * 16]) for number in numbers)


def test_answers_come_in_order_on_the_reading_thread_and_the_lane_serves_again(
    other: Other, readers: ThreadReaders
) -> None:
    watched, answers = WatchedLanes(other.connect, readers), Answers()
    for _ in range(3):
        assert watched.ask(requests(1, 2, 3), [answers.take(each) for each in (1, 2, 3)])
        (end,) = other.ends
        for number in (1, 2, 3):
            message = end.receive()
            assert bytes(message.body) == bytes([number]) * 16
            end.gather(packed({"answer": message.header["number"]}))
        end.send()
        for number in (1, 2, 3):
            assert answers.next() == (number, {"answer": number}, readers.thread)
    answers.assert_no_more()


def test_requests_that_are_under_way_together_have_a_lane_each(
    other: Other, readers: ThreadReaders
) -> None:
    watched, answers = WatchedLanes(other.connect, readers), Answers()
    for number in (1, 2):
        assert watched.ask(requests(number), [answers.take(number)])
    for end in reversed(other.ends):
        send(end, {"answer": end.receive().header["number"]})
    found = {answers.next()[:2][0] for _ in range(2)}
    assert found == {1, 2}


@pytest.mark.parametrize("ending", ["closed", "nonsense", "half", "descriptors"])
def test_requests_without_an_answer_are_told_on_a_thread_that_may_wait(
    other: Other, readers: ThreadReaders, ending: str
) -> None:
    watched, answers = WatchedLanes(other.connect, readers), Answers()
    assert watched.ask(requests(1, 2, 3), [answers.take(each) for each in (1, 2, 3)])
    (end,) = other.ends
    send(end, {"answer": 1})
    assert answers.next() == (1, {"answer": 1}, readers.thread)
    if ending == "nonsense":
        end._socket.send(b"HTTP/1.1 200 OK, " * 3)
    elif ending == "descriptors":
        socket.send_fds(end._socket, [packed({"answer": 2}, (), 200)], [0] * 200)
    elif ending == "half":
        end._socket.send(b"hrw2")
        end.shutdown()
    else:
        end.shutdown()
    for number in (2, 3):
        given, header, thread = answers.next()
        assert (given, header) == (number, None)
        assert thread is not readers.thread
    answers.assert_no_more()
    assert watched.ask(requests(4), [answers.take(4)])  # on another lane
    assert other.ends[-1].receive().header == {"number": 4}


def test_a_lane_that_speaks_without_being_asked_is_given_up(
    other: Other, readers: ThreadReaders
) -> None:
    watched, answers = WatchedLanes(other.connect, readers), Answers()
    assert watched.ask(requests(1), [answers.take(1)])
    end = other.ends[0]
    end.gather(packed({"answer": 1}))
    send(end, {"answer": 2})
    assert answers.next()[:2] == (1, {"answer": 1})
    read_to_the_end(end)
    answers.assert_no_more()


def test_requests_that_cannot_be_sent_are_not_told(other: Other, readers: ThreadReaders) -> None:
    watched, answers = WatchedLanes(other.connect, readers), Answers()
    assert watched.ask(requests(1), [answers.take(1)])
    send(other.ends[0], {"answer": 1})
    answers.next()
    other.ends[0].close()

    def refused() -> bool:
        return not watched.ask(requests(2), [answers.take(2)])

    # The reading thread may hear of the end before, while or after the request is sent.
    if not refused():
        number, header, _ = answers.next()
        assert (number, header) in [(2, None)]
    answers.assert_no_more()


def test_an_answer_that_makes_no_sense_ends_the_lane(other: Other, readers: ThreadReaders) -> None:
    watched, answers = WatchedLanes(other.connect, readers), Answers()

    def refuse(message: Message | None) -> None:
        if message is not None:
            raise Disconnected("it makes no sense")
        answers.take(1)(None)

    assert watched.ask(requests(1, 2), [refuse, answers.take(2)])
    send(other.ends[0], {"answer": 1})
    found = sorted(answers.next()[:2] for _ in range(2))
    assert found == [(1, None), (2, None)]
    read_to_the_end(other.ends[0])


def test_no_lane_is_opened_to_a_worker_that_has_gone(readers: ThreadReaders) -> None:
    def connect() -> Link:
        raise Unavailable("it has gone")

    answers = Answers()
    assert not WatchedLanes(connect, readers).ask(requests(1), [answers.take(1)])
    answers.assert_no_more()


def test_no_lane_is_opened_where_nothing_reads(other: Other) -> None:
    class Ended:
        def add(self, descriptor: int, readable: Any) -> bool:
            return False

        def remove(self, descriptor: int) -> None:
            raise AssertionError("it was never added")

    assert not WatchedLanes(other.connect, Ended()).ask(requests(1), [Answers().take(1)])
    read_to_the_end(other.ends[0])


def test_requests_behind_an_answer_that_makes_no_sense_are_told_after_it_on_one_thread(
    other: Other, readers: ThreadReaders
) -> None:
    watched, answers = WatchedLanes(other.connect, readers), Answers()

    def refuse(message: Message | None) -> None:
        if message is not None:
            raise Disconnected("it makes no sense")
        answers.take(1)(None)

    assert watched.ask(requests(1, 2, 3), [refuse, answers.take(2), answers.take(3)])
    send(other.ends[0], {"answer": 1})
    found = [answers.next() for _ in range(3)]
    assert [number for number, _, _ in found] == [1, 2, 3]
    assert len({thread for _, _, thread in found}) == 1


def test_requests_that_might_fill_the_connection_are_not_sent_and_the_lane_stays(
    other: Other, readers: ThreadReaders
) -> None:
    watched, answers = WatchedLanes(other.connect, readers), Answers()
    large = packed({"number": 1}, [bytes(CREDIT_BYTES // 2)])
    assert not watched.ask(large + large, [answers.take(1), answers.take(2)])
    assert watched.ask(requests(3), [answers.take(3)])
    (end,) = other.ends
    assert end.receive().header == {"number": 3}
    send(end, {"answer": 3})
    assert answers.next()[:2] == (3, {"answer": 3})
    answers.assert_no_more()
