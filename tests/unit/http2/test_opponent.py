"""Both ends against the library h2: what one sends as a message, the other gets equal.

h2 checks what we send: frames, states of streams, windows.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.http2.calls import request_block
from headrace.http2.connection import (
    CallOpened,
    Event,
    MessageReceived,
    MessageRefused,
    Reset,
    StreamEnded,
)
from headrace.http2.limits import ConnectionLimits
from headrace.http2.messages import MessageReader
from headrace.http2.streams import Stream
from tests.support.http2_ends import CALL, End, message, of, plain

TURNS = 100  # after which h2's windows are wide
CODE = h2.settings.SettingCodes
LIMITS = ConnectionLimits(
    window_bytes=65_535, connection_bytes=65_535, frame_bytes=16_384, header_bytes=64 << 10
)


class Call(NamedTuple):
    """A call and what happens to it.

    Attributes:
        sizes: those of its messages, each of which is answered by an equal one.
        padding: of each of h2's frames.
        metadata: how many bytes; above 16 KiB the header block continues.
        trailers: whether h2 sends trailers, also as a client.
        reset: after how many messages one end resets the stream; which end.
    """

    sizes: list[int]
    padding: int
    metadata: int
    trailers: bool
    reset: tuple[int, bool] | None

    def messages(self, seed: int) -> list[bytes]:
        return [bytes((seed + at) % 256 for at in range(size % 251)) * (1 + size // 251)
                for size in self.sizes]  # fmt: skip


class Plan(NamedTuple):
    """What both ends do.

    Attributes:
        pieces: the sizes of the pieces in which bytes come, again and again.
        windows: h2's first window, and a later one.
        is_lazy: whether messages are read, and windows given back, only when nothing else happens.
        pings: whether both ends send PINGs.
    """

    calls: list[Call]
    pieces: list[int]
    windows: tuple[int, int]
    is_lazy: bool
    pings: bool


sizes = st.one_of(st.integers(0, 40), st.integers(0, 3000), st.sampled_from([16_379, 70_000]))
calls = st.builds(
    Call,
    sizes=st.lists(sizes, max_size=4),
    padding=st.sampled_from([0, 0, 1, 255]),
    metadata=st.sampled_from([0, 10, 17_000]),
    trailers=st.booleans(),
    reset=st.none() | st.tuples(st.integers(0, 3), st.booleans()),
)
plans = st.builds(
    Plan,
    calls=st.lists(calls, min_size=1, max_size=5),
    pieces=st.lists(st.sampled_from([1, 3, 9, 10, 500, 16_384, 1 << 20]), min_size=1, max_size=4),
    windows=st.tuples(
        st.sampled_from([0, 1, 100, 65_535, 1 << 20]), st.sampled_from([1, 50, 65_535])
    ),
    is_lazy=st.booleans(),
    pings=st.booleans(),
)
examine = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],  # a failing exchange takes long to shrink
)


class Opponent:
    """An end of h2's.

    Attributes:
        ended, over: the streams whose peer has ended them, and those that were reset.
        got: the data of each stream.
    """

    def __init__(self, plan: Plan, *, is_client: bool) -> None:
        config = h2.config.H2Configuration(client_side=is_client, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.h2.update_settings({CODE.INITIAL_WINDOW_SIZE: plan.windows[0]})
        self.got: dict[int, bytearray] = defaultdict(bytearray)
        self.ended: set[int] = set()
        self.over: set[int] = set()
        self.statuses: dict[int, bytes] = {}
        self.queues: dict[int, bytearray] = {}
        self.padding: dict[int, int] = {}
        self.ends: dict[int, list[tuple[bytes, bytes]] | None] = {}
        self.owed: list[tuple[int, int]] = []

    def take(self, data: bytes) -> list[Any]:
        events = self.h2.receive_data(data)
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                self.got[event.stream_id] += event.data
                self.owed.append((event.flow_controlled_length, event.stream_id))
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.over.add(event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
                status = dict(event.headers).get(b"grpc-status")
                if status is not None:
                    self.statuses[event.stream_id] = status
        return events

    def give_back(self) -> None:
        """Gives windows back."""
        for size, stream in self.owed:
            if size:
                self.h2.acknowledge_received_data(size, stream)
        self.owed.clear()

    def pump(self) -> None:
        """Sends what the windows allow."""
        for stream, queue in list(self.queues.items()):
            if stream in self.over:
                del self.queues[stream]
                continue
            padding = self.padding.get(stream, 0)
            while queue:
                most = min(
                    self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size
                )
                size = min(len(queue), most - padding - 1 if padding else most)
                if size <= 0:
                    break
                self.h2.send_data(stream, bytes(queue[:size]), pad_length=padding or None)
                del queue[:size]
            if not queue and stream in self.ends:
                trailers = self.ends.pop(stream)
                if trailers is None:
                    self.h2.end_stream(stream)
                else:
                    self.h2.send_headers(stream, trailers, end_stream=True)
                del self.queues[stream]

    def reset(self, stream: int) -> None:
        if stream not in self.over and stream not in self.ended:
            self.h2.reset_stream(stream, 8)
            self.over.add(stream)


def parts(pieces: Iterator[int], data: bytes) -> Iterator[bytes]:
    while data:
        size = next(pieces)
        yield data[:size]
        data = data[size:]


def unpacked(data: bytearray) -> list[bytes]:
    """The messages in the data of a stream."""
    found: list[Any] = []
    reader = MessageReader(0)
    rest = reader.feed(memoryview(bytes(data)), found)
    assert rest is None
    assert not reader.has_begun
    return found


def exchange(end: End, opponent: Opponent, plan: Plan, handle: Any) -> None:
    """Lets bytes go to and fro until nothing happens any more."""
    pieces = itertools.cycle(plan.pieces)
    unread: list[MessageReceived] = []

    def read_all() -> None:
        for each in unread:
            end.wire.read(each.stream, len(each.message))
        unread.clear()

    if plan.pings:
        opponent.h2.ping(b"12345678")
        end.wire.ping(b"abcdefgh")
    opponent.h2.update_settings({CODE.INITIAL_WINDOW_SIZE: plan.windows[1]})
    for turn in itertools.count():
        end.now += 0.05  # a window of 1 takes many small frames
        if turn == TURNS:
            opponent.h2.update_settings({CODE.INITIAL_WINDOW_SIZE: 1 << 20})
            opponent.h2.increment_flow_control_window(1 << 20)
        opponent.pump()
        happened = False
        for each in parts(pieces, opponent.h2.data_to_send()):
            happened = True
            while each:
                space = end.wire.space()
                if space is not None:
                    count = min(len(space), len(each))
                    space[:count] = each[:count]
                    events = end.wire.filled(count, end.now)
                else:
                    count = len(each)
                    events = end.read(each)
                each = each[count:]
                unread += of(MessageReceived, events)
                handle(events)
                if not plan.is_lazy:
                    read_all()
        events = []
        while end.wire.has_more:
            end.wire.flush(events)
        handle(events)
        for each in parts(pieces, b"".join(map(bytes, end.wire.take()))):
            happened = True
            handle_h2 = opponent.take(each)
            for event in handle_h2:
                answer(opponent, plan, event)
            if not plan.is_lazy:
                opponent.give_back()
        assert end.fault is None
        if happened:
            continue
        if unread or opponent.owed:
            read_all()
            opponent.give_back()
        elif turn > TURNS:
            return


def answer(opponent: Opponent, plan: Plan, event: Any) -> None:
    """What h2 does as a server: it sends the messages back."""
    if opponent.h2.config.client_side or getattr(event, "stream_id", None) in opponent.over:
        return
    head = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    if isinstance(event, h2.events.RequestReceived):
        stream = event.stream_id
        opponent.h2.send_headers(stream, head)
        opponent.queues[stream] = bytearray()
        opponent.padding[stream] = plan.calls[(stream - 1) // 2].padding
    elif isinstance(event, h2.events.DataReceived):
        if event.stream_id in opponent.queues:
            opponent.queues[event.stream_id] += event.data
    elif isinstance(event, h2.events.StreamEnded):
        opponent.ends[event.stream_id] = [(b"grpc-status", b"0"), (b"x-more", b"y")]
    if isinstance(event, h2.events.DataReceived | h2.events.RequestReceived):
        call = plan.calls[(event.stream_id - 1) // 2]
        if call.reset is not None and call.reset[1]:
            had = len(opponent.got[event.stream_id])
            if had >= sum(5 + size for size in call.sizes[: call.reset[0]]):
                opponent.reset(event.stream_id)


@pytest.mark.long
@examine
@given(plan=plans)
def test_a_server_echoes_what_a_client_of_h2_sends(plan: Plan) -> None:
    server = End(LIMITS)
    opponent = Opponent(plan, is_client=True)
    sent: dict[int, list[bytes]] = {}
    for at, call in enumerate(plan.calls):
        stream = 2 * at + 1
        metadata = [(b"x-more", b"m" * call.metadata)] if call.metadata else []
        opponent.h2.send_headers(stream, [*CALL, *metadata])
        sent[stream] = call.messages(at)
        opponent.queues[stream] = bytearray(b"".join(map(message, sent[stream])))
        opponent.padding[stream] = call.padding
        opponent.ends[stream] = [(b"x-trailer", b"t")] if call.trailers else None
        if call.reset == (0, True):
            opponent.reset(stream)
    counts: dict[int, int] = defaultdict(int)

    def handle(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, CallOpened):
                maybe_reset(event.stream)
                server.wire.send_head(event.stream)
            elif isinstance(event, MessageReceived):
                server.wire.send_message(event.stream, plain(event))
                counts[event.stream.id] += 1
                maybe_reset(event.stream)
            elif isinstance(event, StreamEnded):
                server.wire.finish(event.stream)
            assert not isinstance(event, MessageRefused)

    def maybe_reset(stream: Stream) -> None:
        call = plan.calls[(stream.id - 1) // 2]
        if call.reset == (counts[stream.id], False):
            server.wire.reset(stream)

    exchange(server, opponent, plan, handle)
    assert server.fault is None
    for stream, messages in sent.items():
        call = plan.calls[(stream - 1) // 2]
        if stream in opponent.over:
            assert call.reset is not None
        else:
            assert unpacked(opponent.got[stream]) == messages
            assert opponent.statuses[stream] == b"0"
    check_balance(server)


@examine
@given(plan=plans)
def test_a_client_gets_back_what_it_sends_to_a_server_of_h2(plan: Plan) -> None:
    client = End(LIMITS, client=True)
    opponent = Opponent(plan, is_client=False)
    got: dict[int, list[bytes]] = defaultdict(list)
    trailers: dict[int, Any] = {}
    over: set[int] = set()
    streams = []
    for at, call in enumerate(plan.calls):
        metadata = [("x-more", "m" * call.metadata)] if call.metadata else []
        stream = client.wire.open(request_block("/a.B/C", "localhost", metadata=metadata), 0.0)
        streams.append(stream)
        messages = call.messages(at)
        for each in messages[:-1]:
            client.wire.send_message(stream, each)
        if messages:
            client.wire.send_message(stream, messages[-1], last=not call.trailers)
        if not messages or call.trailers:
            client.wire.end(stream)
        if call.reset == (0, False):
            client.wire.reset(stream)
            over.add(stream.id)

    def handle(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, MessageReceived):
                got[event.stream.id].append(plain(event))
                call = plan.calls[(event.stream.id - 1) // 2]
                if call.reset == (len(got[event.stream.id]), False):
                    client.wire.reset(event.stream)
                    over.add(event.stream.id)
            elif isinstance(event, StreamEnded):
                trailers[event.stream.id] = event.trailers
            elif isinstance(event, Reset):
                over.add(event.stream.id)
            assert not isinstance(event, MessageRefused) or event.stream.id in over

    exchange(client, opponent, plan, handle)
    assert client.fault is None
    for at, (stream, call) in enumerate(zip(streams, plan.calls, strict=True)):
        if stream.id in over:
            assert call.reset is not None
        else:
            assert got[stream.id] == call.messages(at)
            assert trailers[stream.id].code == 0
            assert trailers[stream.id].metadata == (("x-more", "y"),)
    check_balance(client)


def check_balance(end: End) -> None:
    """Checks that all memory was given back."""
    assert end.wire.streams == {}
    assert end.wire.unread == 0
    assert end.room.used == 0  # type: ignore[attr-defined]
    assert not end.wire.ready
