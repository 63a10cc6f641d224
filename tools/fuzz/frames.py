"""Sends mutated frames of HTTP/2, each conversation on a connection of its own: `make fuzz-wire`.

A conversation that is right (a preface, settings, a few calls whose frames alternate) is changed a
little, at random. Every connection has to end: each call whose end the server has read, by a
status or a reset, unless the connection ends before; a PING that arrives, by its answer; and the
whole connection, once the client sends no more. What the same seed sends is always the same.
"""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

import hpack
import numpy as np

from headrace.http2 import frames
from headrace.http2.calls import request_block
from headrace.http2.frames import Setting
from headrace.http2.messages import prefix
from headrace.testing import networks
from tests.integration.harness import Server
from tools.fuzz.wire import CALLERS, OPENED, SERVICE, SOUND, mutated, prepare

BATCH = 200  # conversations between two calls that have to be answered right
SECONDS = 20.0  # of silence on a connection that owes something
CHECK, WATCH = "grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"
METHODS = (
    *(f"{SERVICE}/{name}" for name in ("Infer", "InferStream", "GetNetwork", "UploadModel")),
    *(f"{SERVICE}/{name}" for name in ("ExportNetwork", "ListNetworks")),
    *(f"{OPENED}/{name}" for name in ("ModelInfer", "ModelStreamInfer", "ServerLive")),
    CHECK,
    WATCH,
    f"{SERVICE}/Nothing",
)
"""Calls of each shape, none of which takes long."""
NUMBERS = (0, 1, 2, 3, 5, 7, 1001, 16_384, 65_535, 2**24 - 1, 2**31 - 1, 2**31, 2**32 - 1)
LAST = frames.NUMBER.pack(0xFFFFFFFF) * 2  # the payload of the PING behind everything
TAIL = (
    # Replies get all the room that they need, whatever the conversation has made of the windows.
    frames.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 20})
    + frames.window_update(0, 1 << 20)
    + frames.frame(frames.PING, 0, 0, LAST)
)
OWN_ERRORS = ("internal error", "Unexpected <class", "Exception ")
"""What INTERNAL or UNKNOWN say where they are the server's own fault. gRPC's protocol asks for
INTERNAL where a timeout, a flag or metadata cannot be read."""


class Plan(NamedTuple):
    """What is sent on a connection, in parts. `endless` calls have no end of their own; a plan that
    is `right` has not been changed."""

    parts: list[bytes]
    endless: bool
    right: bool


def conversation(dice: random.Random, right: dict[str, list[bytes]]) -> tuple[list[bytes], bool]:
    """The frames of one to four calls, and whether one of them is endless."""
    window = dice.choice((0, 1, 100, 65_535, 1 << 20))
    begin = [
        frames.PREFACE,
        frames.settings({Setting.INITIAL_WINDOW_SIZE: window, Setting.ENABLE_PUSH: 0}),
        frames.frame(frames.SETTINGS, frames.ACK, 0),
    ]
    encoder = hpack.Encoder() if dice.random() < 0.5 else None
    calls: list[list[bytes]] = []
    # Blocks that change the table of headers arrive in the order in which they were encoded.
    heads: list[bytes] = []
    endless = False
    for index in range(dice.randint(1, 4)):
        path = dice.choice(METHODS)
        endless |= path == WATCH
        messages = right.get(path, [b""])
        if not path.endswith(("Stream", "StreamInfer", "UploadModel")):
            messages = [dice.choice(messages)]
        heads.append(_head(dice, encoder, path, 2 * index + 1))
        calls.append(_body(dice, messages, 2 * index + 1))
    found = [*begin, *heads] if dice.random() < 0.5 else [*begin]
    if len(found) > len(begin):
        heads = []
    while heads or any(calls):
        if heads:
            found.append(heads.pop(0))
        opened = calls[: len(calls) - len(heads)]
        for each in dice.sample(opened, len(opened)):
            found += each[:1]
            del each[:1]
        if dice.random() < 0.1:
            found.append(frames.frame(frames.PING, 0, 0, dice.randbytes(8)))
    return found, endless


def _head(dice: random.Random, encoder: Any, path: str, stream: int) -> bytes:
    """HEADERS of a call, sometimes with CONTINUATION."""
    timeout = dice.choice((None, 0.001, 5.0))
    block = request_block(
        f"/{path}", "here", timeout=timeout, metadata=[("a", "b" * 20), ("c-bin", b"\x00\xff")]
    )
    if encoder is not None:
        block = encoder.encode(hpack.Decoder().decode(block, raw=True))
    return frames.header_frames(stream, block, dice.choice((10, 50, 1 << 14)), end=False)


def _body(dice: random.Random, messages: list[bytes], stream: int) -> list[bytes]:
    """DATA of a call, of some size, sometimes padded, sometimes with an end of its own."""
    data = b"".join(prefix(len(each)) + each for each in messages)
    size = dice.choice((7, 50, 1 << 14)) if len(data) < 4096 else 1 << 14
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    if dice.random() < 0.2:
        pieces.append(b"")
    found = []
    for index, piece in enumerate(pieces):
        flags = frames.END_STREAM if index == len(pieces) - 1 else 0
        if len(piece) < 1 << 14 and dice.random() < 0.1:
            piece = bytes([3]) + piece + bytes(3)
            flags |= frames.PADDED
        found.append(frames.frame(frames.DATA, flags, stream, piece))
    if dice.random() < 0.05:
        found[-1] = frames.rst_stream(stream, frames.ErrorCode.CANCEL)
    return found


def changed(dice: random.Random, parts: list[bytes]) -> list[bytes]:
    """The parts of a conversation, changed in one to four places: whole frames, heads, payloads."""
    parts = parts[:]
    for _ in range(dice.randint(1, 4)):
        if not parts:
            break
        # The preface is seldom changed: nothing behind it would be read.
        at = dice.randrange(1 if len(parts) > 1 and dice.random() < 0.95 else 0, len(parts))
        part = bytearray(parts[at])
        kind = part[3] if len(part) >= frames.HEAD_BYTES else 0
        match dice.randrange(12):
            case 0:
                parts[at : at + 1] = [bytes(part)] * dice.choice((2, 2, 50))
            case 1:
                del parts[at]
            case 2:
                other = dice.randrange(len(parts))
                parts[at], parts[other] = parts[other], parts[at]
            case 3:
                parts[at] = bytes(part[: dice.randrange(len(part) + 1)])
            case 4:
                del parts[at:]
            case 5:  # the length alone
                part[:3] = dice.choice(NUMBERS).to_bytes(4, "big")[1:]
                parts[at] = bytes(part)
            case 6:  # the type
                part[3:4] = bytes([dice.choice((*range(11), 255))])
                parts[at] = bytes(part)
            case 7:  # a flag
                part[4:5] = bytes([part[4] ^ 1 << dice.randrange(8) if len(part) > 4 else 0])
                parts[at] = bytes(part)
            case 8:  # the stream
                part[5:9] = frames.NUMBER.pack(dice.choice(NUMBERS))
                parts[at] = bytes(part)
            case 9:  # any byte
                parts[at] = mutated(dice, bytes(part), parts)
            case 10:  # the payload, behind a head that fits it
                payload = mutated(dice, bytes(part[9:]), parts)[: frames.MAX_FRAME_BYTES]
                flags, stream = (part[4], int.from_bytes(part[5:9])) if len(part) > 8 else (0, 1)
                parts[at] = frames.frame(kind, flags, stream, payload)
            case _:
                parts.insert(at, _stray(dice))
    return parts


def _stray(dice: random.Random) -> bytes:
    """A frame of any type that fits nothing around it."""
    setting = frames.ONE_SETTING.pack(dice.randrange(10), dice.choice(NUMBERS))
    payload = dice.choice(
        (b"", bytes(4), frames.NUMBER.pack(dice.choice(NUMBERS)), bytes(8), setting)
    )
    return frames.frame(
        dice.choice((*range(10), 77)),
        dice.choice((0, 1, 4, 5, 8, 32, 255)),
        dice.choice((0, 0, 1, 1, 3, 5, dice.choice(NUMBERS))),
        payload,
    )


def plans(dice: random.Random, right: dict[str, list[bytes]], number: int) -> Iterator[Plan]:
    """That many conversations."""
    for _ in range(number):
        parts, endless = conversation(dice, right)
        if dice.random() < 0.1:
            yield Plan([*parts, TAIL], endless, right=True)
            continue
        data = b"".join([*changed(dice, parts), TAIL])
        size = dice.choice((1 << 20, 1 << 20, 1000, 100))  # what the server reads at once
        if len(data) > 20 * size:
            size = len(data)
        cut = [data[start : start + size] for start in range(0, len(data), size)]
        yield Plan(cut, endless, right=False)


def owed(data: bytes) -> tuple[set[int], bool]:
    """What the server owes for these bytes unless it ends the connection: the ends of these
    streams, and an answer to the last PING."""
    if not data.startswith(frames.PREFACE):
        return set(), False
    ended: set[int] = set()
    reset: set[int] = set()
    opened: set[int] = set()
    at = len(frames.PREFACE)
    pinged, open_block, has_room = False, False, False
    while at + frames.HEAD_BYTES <= len(data):
        has_room |= data.startswith(TAIL, at)
        high, low, kind, flags, stream = frames.HEAD.unpack_from(data, at)
        stream &= frames.MAX_WINDOW
        payload = data[at + 9 : at + 9 + (high << 8 | low)]
        at += 9 + (high << 8 | low)
        if at > len(data):
            break
        if kind == frames.HEADERS:
            opened.add(stream)
        if kind in (frames.HEADERS, frames.CONTINUATION):
            open_block = not flags & frames.END_HEADERS
        if kind in (frames.HEADERS, frames.DATA) and flags & frames.END_STREAM:
            ended.add(stream)
        if kind == frames.RST_STREAM:
            reset.add(stream)
        pinged |= kind == frames.PING and payload == LAST and not flags & frames.ACK
    if not pinged or open_block:
        return set(), False
    # Where a frame that was changed swallows the beginning of the tail, replies may wait for room.
    return (ended & opened) - reset if has_room else set(), True


class Heard:
    """What the server has said on a connection.

    Attributes:
        ended: the streams that it has ended.
        said: statuses of gRPC and HTTP, resets and GOAWAYs, for example "RST CANCEL".
        faults: what no server may say.
    """

    def __init__(self) -> None:
        self.ended: set[int] = set()
        self.pinged = False
        self.said: Counter[str] = Counter()
        self.faults: list[str] = []
        self._data = b""
        self._block = b""
        self._decoder = hpack.Decoder(1 << 24)
        self._decoder.max_allowed_table_size = 2**32

    def feed(self, data: bytes) -> None:
        self._data += data
        if self._data.startswith(b"HTTP/1"):
            self.said["HTTP/1.1"] = 1
            return
        while len(self._data) >= frames.HEAD_BYTES:
            high, low, kind, flags, stream = frames.HEAD.unpack_from(self._data)
            end = frames.HEAD_BYTES + (high << 8 | low)
            if len(self._data) < end:
                return
            payload, self._data = self._data[frames.HEAD_BYTES : end], self._data[end:]
            self._frame(kind, flags, stream, payload)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (frames.HEADERS, frames.CONTINUATION):
            self._block += payload
            if flags & frames.END_HEADERS:
                self._fields()
        elif kind == frames.RST_STREAM:
            self._over("RST", payload)
            self.ended.add(stream)
        elif kind == frames.GOAWAY:
            self._over("GOAWAY", payload[4:])
        elif kind == frames.PING and payload == LAST:
            self.pinged = True
        if kind in (frames.HEADERS, frames.DATA) and flags & frames.END_STREAM:
            self.ended.add(stream)

    def _over(self, how: str, payload: bytes) -> None:
        code = frames.ErrorCode(frames.NUMBER.unpack_from(payload)[0])
        self.said[f"{how} {code.name}"] += 1
        if code is frames.ErrorCode.INTERNAL_ERROR:
            self.faults.append(f"{how} says INTERNAL_ERROR: {payload[4:]!r}")

    def _fields(self) -> None:
        block, self._block = self._block, b""
        fields = dict(self._decoder.decode(block, raw=True))
        if (status := fields.get(b":status")) not in (None, b"200"):
            self.said[f"HTTP {int(status or b'0')}"] += 1
        if (code := fields.get(b"grpc-status")) is not None:
            text = unquote(fields.get(b"grpc-message", b"").decode(errors="replace"))
            why = ""
            if int(code) in (2, 13):
                why = f" {text.partition(':')[0]}"
                if any(each in text for each in OWN_ERRORS):
                    self.faults.append(f"status {int(code)}: {text!r}")
            self.said[f"status {int(code):2}{why}"] += 1


@dataclass
class Frames:
    """What happened so far."""

    said: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    sent: int = 0
    answered: int = 0
    slowest: float = 0.0

    def add(self, plan: Plan, heard: Heard, seconds: float) -> None:
        self.sent += 1
        self.slowest = max(self.slowest, seconds)
        self.said += heard.said
        sent = b"".join(plan.parts)
        shown = sent.hex() if len(sent) < 4096 else f"{len(sent)} bytes"
        self.faults += [f"{each} for {shown}" for each in heard.faults]


def converse(address: str, plan: Plan) -> tuple[Heard, float]:
    """One connection. Returns what the server has said, and the seconds that it took."""
    host, _, port = address.rpartition(":")
    heard, began = Heard(), time.monotonic()
    streams, ping = owed(b"".join(plan.parts))
    if plan.endless:
        streams = set()
    with socket.create_connection((host, int(port)), SECONDS) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        over = False
        try:
            for part in plan.parts:
                client.sendall(part)
            while not over and not (streams <= heard.ended and heard.pinged >= ping):
                data = client.recv(1 << 16)
                heard.feed(data)
                over = not data
            with suppress(OSError):  # the server was first
                client.shutdown(socket.SHUT_WR)
            while data := client.recv(1 << 16):
                heard.feed(data)
        except TimeoutError:
            left = sorted(streams - heard.ended)
            heard.faults.append(f"no end: of the streams {left}, a PING {heard.pinged >= ping}")
        except ConnectionError:
            heard.said["connection reset"] += 1
        except (hpack.HPACKError, ValueError) as error:
            heard.faults.append(f"a frame of the server cannot be read: {error!r}")
    over = over or any(each.startswith("GOAWAY") for each in heard.said)
    if over and plan.right:
        heard.faults.append(f"the connection has ended, though all was right: {heard.said}")
    heard.said[f"connections {'ended by the server' if over else 'answered'}"] += 1
    return heard, time.monotonic() - began


def fuzz_frames(server: Server, number: int, seed: int) -> Frames:
    """Sends that many conversations to the server, whose devices are those of `DEVICES`."""
    right, state = prepare(server), Frames()
    case = networks.add()
    right_answer = np.asarray(case.inputs["x"]) + np.asarray(case.inputs["y"])
    with ThreadPoolExecutor(CALLERS) as pool:
        ahead = plans(random.Random(seed), right, number)
        while batch := list(islice(ahead, BATCH)):
            ends = pool.map(partial(converse, server.address), batch)
            for plan, (heard, seconds) in zip(batch, ends, strict=True):
                state.add(plan, heard, seconds)
            outputs = server.infer(SOUND, case.inputs)
            np.testing.assert_array_equal(outputs["z"], right_answer)
            state.answered += 1
    counted = server.scrape().items()
    state.faults += [
        f"{name} {dict(labels)} is {value:g}"
        for (name, labels), value in counted
        if value and any(label.upper() == "INTERNAL" for _, label in labels)
    ]
    return state
