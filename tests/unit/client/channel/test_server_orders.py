"""A server that answers in every order, legal and illegal: each call gets its own answer, or an
error, and the channel goes on."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.client.channel.channel import CallFailed
from tests.support import http2_ends as raw
from tests.support.channel_callers import KINDS, calling
from tests.support.listeners import listening
from tests.support.patience import PATIENCE_SECONDS as SECONDS

CODE = h2.settings.SettingCodes
HEAD = ((":status", "200"), ("content-type", "application/grpc"), ("some", "metadata"))
EXAMPLES = settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a failure takes seconds
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Answer(NamedTuple):
    """How a call is answered.

    Attributes:
        sizes: how the reply is cut into DATA frames.
        padding: of each of them.
        end: "ok", "status", "at once", "reset", "refused" or "http".
    """

    sizes: list[int]
    padding: int
    end: str


class Script(NamedTuple):
    """What a server does.

    Attributes:
        answers: one for each call.
        order: which call is answered next, one frame at a time.
        noise: what comes between: pings, settings, windows.
        goodbye: after how many frames it says GOAWAY. It goes on with the calls.
    """

    answers: list[Answer]
    order: list[int]
    noise: list[str]
    goodbye: int | None


answers = st.builds(
    Answer,
    sizes=st.lists(st.sampled_from([0, 1, 4, 5, 6, 1000, 16_000]), max_size=5),
    padding=st.sampled_from([0, 0, 1, 200]),
    end=st.sampled_from(["ok", "ok", "status", "at once", "reset", "refused", "http"]),
)
scripts = st.builds(
    Script,
    answers=st.lists(answers, min_size=1, max_size=6),
    order=st.lists(st.integers(0, 5), max_size=60),
    noise=st.lists(st.sampled_from(["", "", "ping", "settings", "window"]), max_size=20),
    goodbye=st.none() | st.integers(0, 20),
)


class Server:
    """Plays a script on its first connection, and echoes on all others and afterwards."""

    def __init__(self, script: Script | None) -> None:
        self._script = script

    def talk(self, accepted: socket.socket) -> None:
        script, self._script = self._script, None
        Conversation(script).talk(accepted)


class Conversation:
    """One connection of such a server."""

    def __init__(self, script: Script | None) -> None:
        self._script = script or Script([], [], [], None)
        self._plays = script is not None
        self._last = 2**31

    def talk(self, accepted: socket.socket) -> None:
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self._socket = accepted
        self._wire = h2.connection.H2Connection(config)
        self._wire.initiate_connection()
        self._requests: dict[int, bytearray] = {}
        self._whole: list[int] = []
        plays = self._plays
        self._send()
        while data := accepted.recv(65_536):
            self._receive(data)
            if plays and len(self._whole) == len(self._script.answers):
                plays = False
                calls, self._whole = self._whole, []
                self._play(calls)
            elif not plays:
                for call in self._whole:
                    if call <= self._last:
                        self._echo(call)
                self._whole.clear()
            self._send()

    def _send(self) -> None:
        self._socket.sendall(self._wire.data_to_send())

    def _receive(self, data: bytes) -> None:
        for event in self._wire.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                self._requests[event.stream_id] = bytearray()
            elif isinstance(event, h2.events.DataReceived):
                self._requests[event.stream_id] += event.data
                self._wire.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self._whole.append(event.stream_id)

    def _echo(self, call: int) -> None:
        self._wire.send_headers(call, HEAD)
        self._wire.send_data(call, bytes(self._requests[call]))
        self._wire.send_headers(call, (("grpc-status", "0"),), end_stream=True)

    def _play(self, calls: Sequence[int]) -> None:
        steps = {
            at: self._steps(call, self._script.answers[self._number(call)])
            for at, call in enumerate(calls)
        }
        order, noise = iter(self._script.order), iter(self._script.noise)
        played = 0
        while steps:
            at = next(order, 0) % 6
            chosen = at if at in steps else next(iter(steps))
            if next(steps[chosen], "over") == "over":
                del steps[chosen]
            self._make_noise(next(noise, ""))
            if played == self._script.goodbye:
                self._last = max(calls)
                self._wire.close_connection(last_stream_id=self._last)
                self._wire.state_machine.state = h2.connection.ConnectionState.SERVER_OPEN
            self._send()
            played += 1

    def _number(self, call: int) -> int:
        return self._requests[call][5]

    def _make_noise(self, noise: str) -> None:
        if noise == "ping":
            self._wire.ping(b"12345678")
        elif noise == "settings":
            # The same ones each time: h2 takes an ACK for one of all that it has sent.
            changed: dict[Any, int] = {CODE.INITIAL_WINDOW_SIZE: 1 << 16, CODE.HEADER_TABLE_SIZE: 0}
            self._wire.update_settings(changed)
        elif noise == "window":
            self._wire.increment_flow_control_window(1000)

    def _steps(self, call: int, answer: Answer) -> Iterator[None]:
        """Answers a call, one frame at a step."""
        wire, end = self._wire, answer.end
        if end in ("refused", "at once"):
            yield
            if end == "refused":
                wire.reset_stream(call, 7)
            else:
                last = (*HEAD, ("grpc-status", "5"), ("grpc-message", "at once"))
                wire.send_headers(call, last, end_stream=True)
            return
        yield
        if end == "http":
            wire.send_headers(call, ((":status", "503"), ("content-type", "text/html")))
            yield
            wire.send_data(call, b"<html>", end_stream=True)
            return
        wire.send_headers(call, HEAD)
        rest = bytes(self._requests[call])
        for size in answer.sizes:
            yield
            wire.send_data(call, rest[:size], pad_length=answer.padding or None)
            rest = rest[size:]
        if end == "reset":
            yield
            wire.reset_stream(call, 2)
            return
        yield
        wire.send_data(call, rest)
        yield
        status = (("grpc-status", "0" if end == "ok" else "9"), ("grpc-message", "at the end"))
        wire.send_headers(call, status, end_stream=True)


EXPECTED = {
    "status": grpc.StatusCode.FAILED_PRECONDITION,
    "at once": grpc.StatusCode.NOT_FOUND,
    "reset": grpc.StatusCode.INTERNAL,
    "http": grpc.StatusCode.UNAVAILABLE,
}


@EXAMPLES
@given(script=scripts)
@pytest.mark.parametrize("kind", KINDS)
def test_each_call_gets_its_own_answer_in_every_legal_order(kind: str, script: Script) -> None:
    calls: list[tuple[str, Any, dict[str, Any]]] = [
        ("/t/M", bytes([number]) * 20_000, {"timeout": SECONDS})
        for number in range(len(script.answers))
    ]
    with (
        listening(Server(script).talk) as port,
        calling(kind, f"127.0.0.1:{port}") as callers,
    ):
        outcomes = callers.all(calls)
        after = callers.one("/t/M", b"after", timeout=SECONDS)
    assert bytes(after.message) == b"after"
    for (_, request, _), answer, outcome in zip(calls, script.answers, outcomes, strict=True):
        if answer.end in ("ok", "refused"):
            assert not isinstance(outcome, CallFailed), outcome
            assert bytes(outcome.message) == request
        else:
            assert isinstance(outcome, CallFailed)
            assert outcome.code is EXPECTED[answer.end], outcome


# -- what no server may send --

HEADERS = ((b":status", b"200"), (b"content-type", b"application/grpc"))
streams = st.sampled_from([0, 1, 1, 1, 3, 5, 2, 99, 2**31 - 1])
fields = st.lists(
    st.sampled_from(
        [
            (b":status", b"200"),
            (b":status", b"100"),
            (b":status", b"x"),
            (b"content-type", b"application/grpc"),
            (b"content-type", b"text/html"),
            (b"grpc-status", b"0"),
            (b"grpc-status", b"-1"),
            (b"grpc-status", b"7"),
            (b"grpc-message", b"%F%zz"),
            (b"grpc-encoding", b"gzip"),
            (b"grpc-encoding", b"nonsense"),
            (b"some-bin", b"!!"),
            (b"Upper", b"case"),
            (b"", b""),
            (b"connection", b"close"),
        ]
    ),
    max_size=5,
)
flags = st.sampled_from([0, 1, 4, 5, 8, 32, 255])
frames = st.one_of(
    st.builds(lambda flag, stream, more: raw.frame(1, flag, stream, raw.block(*more)),
              flags, streams, fields),
    st.builds(lambda stream: raw.headers(stream, flags=4, call=HEADERS), streams),
    st.builds(lambda stream: raw.headers(stream, (b"grpc-status", b"0"), call=()), streams),
    st.builds(raw.frame, st.integers(0, 12), flags, streams, st.binary(max_size=40)),
    st.builds(lambda stream, size: raw.data(stream, raw.message(bytes(size))),
              streams, st.sampled_from([0, 1, 100, 20_000])),
    st.builds(lambda stream, size: raw.data(stream, raw.message(b"x" * size)[: size // 2]),
              streams, st.sampled_from([0, 4, 100])),
    st.builds(raw.reset, streams, st.sampled_from(sorted(raw.CODES))),
    st.builds(raw.window_update, streams, st.sampled_from([0, 1, 2**31 - 1])),
    st.builds(lambda last: raw.frame(raw.GOAWAY, 0, 0, raw.number(last) + raw.number(0)), streams),
    st.builds(lambda key, value: raw.settings((key, value)),
              st.integers(0, 8), st.sampled_from([0, 1, 2**16, 2**31, 2**32 - 1])),
    st.binary(min_size=1, max_size=30),
)  # fmt: skip


class Wild:
    """Answers the first connection by these bytes, in these pieces, and all others well."""

    def __init__(self, greets: bool, pieces: Sequence[bytes]) -> None:
        self._greets = greets
        self._pieces = list(pieces)
        self._connections = 0

    def talk(self, accepted: socket.socket) -> None:
        self._connections += 1
        if self._connections > 1:
            with suppress(h2.exceptions.ProtocolError):  # it is asked whether it speaks TLS
                Conversation(None).talk(accepted)
            return
        accepted.recv(65_536)
        if self._greets:
            accepted.sendall(raw.settings())
            accepted.recv(65_536)
        for piece in self._pieces:
            accepted.sendall(piece)


@EXAMPLES
@given(pieces=st.lists(frames, max_size=8), greets=st.sampled_from([True, True, True, False]))
@pytest.mark.parametrize("kind", KINDS)
def test_calls_end_whatever_a_server_sends(kind: str, pieces: list[bytes], greets: bool) -> None:
    calls: list[tuple[str, Any, dict[str, Any]]] = [
        ("/t/M", b"%d" % number, {"timeout": SECONDS}) for number in range(3)
    ]
    with (
        listening(Wild(greets, pieces).talk) as port,
        calling(kind, f"127.0.0.1:{port}") as callers,
    ):
        for outcome in callers.all(calls):
            if isinstance(outcome, CallFailed):
                assert outcome.code is not grpc.StatusCode.DEADLINE_EXCEEDED
        after = callers.one("/t/M", b"after", timeout=SECONDS, repeat=True)
    assert bytes(after.message) == b"after"


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_the_server_is_told_of_each_call_that_ends_with_its_channel(kind: str) -> None:
    """The end of the connection alone does not tell a server behind a proxy."""
    seen: queue.SimpleQueue[tuple[type, int]] = queue.SimpleQueue()

    def talk(accepted: socket.socket) -> None:
        wire = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        wire.initiate_connection()
        accepted.sendall(wire.data_to_send())
        while data := accepted.recv(65_536):
            for event in wire.receive_data(data):
                if isinstance(event, h2.events.RequestReceived | h2.events.StreamReset):
                    seen.put((type(event), event.stream_id))
            with suppress(OSError):  # the client may have closed it, and there is more to read
                accepted.sendall(wire.data_to_send())

    with listening(talk) as port:
        with calling(kind, f"127.0.0.1:{port}") as callers:
            streams = [callers.begun("/t/M") for _ in range(3)]
            begun = [seen.get(timeout=SECONDS) for _ in streams]
        ended = [seen.get(timeout=SECONDS) for _ in streams]
    assert begun == [(h2.events.RequestReceived, number) for number in (1, 3, 5)]
    assert sorted(number for _, number in ended) == [1, 3, 5]
