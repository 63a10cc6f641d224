"""Which requests share the next message of a stream, and whose each result is.

It does no input or output and has no threads. A shell for threads and one for tasks drive it.
"""

from __future__ import annotations

import math
import secrets
import struct
from collections import deque
from collections.abc import Mapping
from typing import ClassVar, Final, Generic, TypeVar

from headrace.wire import framing
from headrace.wire.codec import ATTACHMENT_BYTES, CodecError
from headrace.wire.framing import varint
from headrace.wire.message import SMALL_BYTES
from headrace.wire.request import MAX_TIMEOUT_SECONDS
from headrace.wire.stream import StreamLimits, StreamReply, StreamResult, serialize_encoded_requests

MAX_REQUEST_BYTES: Final = SMALL_BYTES - 1024
"""The largest request that shares a message. A larger one costs more by its bytes than by its call,
and would make others wait."""
MAX_MESSAGE_REQUESTS: Final = 64
MAX_MESSAGE_BYTES: Final = 256 * 1024
MAX_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of requests without a result."""
UNREAD_MESSAGES: Final = 2
"""How many messages may be on a short way: one that the server works on, and the next one."""
NEAR_SECONDS: Final = 0.002
"""A way is short if the server has once told after this time that it has read a message."""
HEAVY_BYTES: Final = 256 * 1024
"""A reply of this size delays the replies behind it."""
HEAVY_REQUESTS: Final = 32
"""How many requests to a network do without the stream after it has given a heavy reply."""
_MAX_HEAVY: Final = 1024

_DOUBLE = struct.Struct("<d")


class Item:
    """One request.

    Attributes:
        data: the serialised InferRequest, without an id and a timeout.
        timeout_seconds: None for no limit.
        trace: the trace context to send with it, by the names of W3C's headers.
        once: whether it must not be sent again after it may have reached the server.
        deadline: when its stream is to end it; None if its own thread does.
        id: its name on the stream.
        sent: whether it has been given to gRPC.
        blocks: whether a thread waits for it.
    """

    blocks: ClassVar[bool] = False
    __slots__ = ("data", "deadline", "id", "once", "sent", "timeout_seconds", "trace")

    def __init__(
        self,
        data: bytes,
        timeout_seconds: float | None = None,
        trace: Mapping[str, str] | None = None,
        *,
        once: bool = False,
    ) -> None:
        self.data = data
        self.timeout_seconds = timeout_seconds
        self.trace = trace
        self.once = once
        self.deadline: float | None = None
        self.id = ""
        self.sent = False


I = TypeVar("I", bound=Item)  # noqa: E741 - an item


class Gathering(Generic[I]):
    """The requests of one stream. Not thread-safe; `now` is in seconds of any clock.

    Requests gather while messages are being written. gRPC takes a message long before the server
    has it, so on a short way a message counts as being written until the server says that it has
    read it. On a long way that would cost requests a round trip.

    A request is in flight from `add` until its result has come. One that is given up stays so for
    the server, and counts until the server has answered.

    Attributes:
        limits: those of the server. None until the server has answered the last question.
        carried: how many results have come.
        company: how many came with the last one, itself included. Their callers may be about to
            send requests, too.
    """

    def __init__(self, prefix: str | None = None) -> None:
        self.limits: StreamLimits | None = None
        self.carried = 0
        self.company = MAX_MESSAGE_REQUESTS  # not known yet
        self._prefix = secrets.token_hex(3) if prefix is None else prefix
        self._number = 0
        self._asks = True
        self._sent: deque[float] = deque()  # when the messages were sent that are not read yet
        self._read = 0
        self._nearest_seconds = math.inf
        self._waiting: deque[tuple[I, bytes]] = deque()
        self._in_flight: dict[str, I | None] = {}  # None: given up
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._cancels: list[str] = []
        self._heavy: dict[bytes, int] = {}

    @property
    def in_flight(self) -> list[I]:
        """The requests that somebody waits for."""
        return [item for item in self._in_flight.values() if item is not None]

    @property
    def waiting(self) -> int:
        """How many requests are to be sent."""
        return len(self._waiting)

    @property
    def is_ready(self) -> bool:
        """Whether there is a message to send now."""
        return bool(self._cancels or self._asks or (self._waiting and not self._is_full))

    @property
    def _is_full(self) -> bool:
        """Whether the server has to read before it gets more requests."""
        return len(self._sent) >= UNREAD_MESSAGES and self._nearest_seconds <= NEAR_SECONDS

    @property
    def is_idle(self) -> bool:
        """Whether the server owes no result."""
        return not self._in_flight

    def ask(self) -> None:
        """Asks the server for its limits, with the next message."""
        self.limits = None
        self._asks = True

    def takes(self, data: bytes) -> bool:
        """Whether the stream takes a request now. The network of a heavy reply is told by the
        request's first field, which is its name."""
        limits, size = self.limits, len(data)
        if (
            limits is None
            or size > MAX_REQUEST_BYTES
            or size > (limits.message_bytes or MAX_MESSAGE_BYTES) // 2
            or len(self._in_flight) >= limits.in_flight
            or self._bytes + size > MAX_BYTES
        ):
            return False
        if self._heavy and (left := self._heavy.get(_network(data))):
            self._heavy[_network(data)] = left - 1
            return False
        return True

    def add(self, item: I) -> None:
        """Takes a request, which goes out with the next message that has room."""
        self._number += 1
        item.id = f"{self._prefix}-{self._number:06x}"
        body = _body(item)
        self._in_flight[item.id] = item
        self._sizes[item.id] = len(body)
        self._bytes += len(body)
        self._waiting.append((item, body))

    def give_up(self, item: I) -> bool:
        """Waits for a request no longer, and tells the server. Returns False if it has ended."""
        if self._in_flight.get(item.id) is not item:
            return False
        if item.sent:
            self._in_flight[item.id] = None
            self._cancels.append(item.id)
        else:
            self._waiting = deque(each for each in self._waiting if each[0] is not item)
            self._forget(item.id)
        return True

    def next_message(self, now: float) -> bytes | None:
        """The message with what waits, in order, up to the limits of a message. None if there is
        nothing to send, or the server has to read first."""
        if not self.is_ready:
            return None
        waiting: deque[tuple[I, bytes]] = deque() if self._is_full else self._waiting
        self._sent.append(now)
        bodies: list[bytes] = []
        size, most = 0, self._message_bytes(self.limits)
        while waiting and len(bodies) < MAX_MESSAGE_REQUESTS:
            item, body = waiting[0]
            if bodies and size + len(body) > most:
                break
            waiting.popleft()
            item.sent = True
            size += len(body)
            bodies.append(body)
        cancels = self._cancels[:MAX_MESSAGE_REQUESTS]
        del self._cancels[:MAX_MESSAGE_REQUESTS]
        asks, self._asks = self._asks, False
        return serialize_encoded_requests(bodies, cancels, ask_limits=asks)

    def receive(self, reply: StreamReply, now: float) -> list[tuple[I, StreamResult]]:
        """The results of a message of the server, each with its request.

        Raises:
            CodecError: a result is for no request in flight.
        """
        while self._sent and self._read < reply.messages_read:
            self._read += 1
            self._nearest_seconds = min(self._nearest_seconds, now - self._sent.popleft())
        if reply.limits is not None and not self._asks:
            self.limits = reply.limits
        settled: list[tuple[I, StreamResult]] = []
        for result in reply.results:
            if result.id not in self._in_flight:
                raise CodecError("results.id", f"{result.id!r} is not in flight")
            item = self._in_flight[result.id]
            self._forget(result.id)
            if item is not None:
                settled.append((item, result))
                if result.attachments:
                    self._learn(item, result)
        self.carried += len(settled)
        if reply.results:
            self.company = len(reply.results)
        return settled

    def end(self) -> list[I]:
        """Ends all requests; returns those that somebody waits for."""
        left = self.in_flight
        self._waiting.clear()
        self._cancels.clear()
        self._in_flight.clear()
        self._sizes.clear()
        self._bytes = 0
        return left

    def _forget(self, identifier: str) -> None:
        del self._in_flight[identifier]
        self._bytes -= self._sizes.pop(identifier)

    def _learn(self, item: I, result: StreamResult) -> None:
        if sum(map(len, result.attachments)) >= HEAVY_BYTES:
            if len(self._heavy) >= _MAX_HEAVY:
                self._heavy.clear()
            self._heavy[_network(item.data)] = HEAVY_REQUESTS

    @staticmethod
    def _message_bytes(limits: StreamLimits | None) -> int:
        theirs = 0 if limits is None else limits.message_bytes
        return min(theirs, MAX_MESSAGE_BYTES) if theirs else MAX_MESSAGE_BYTES


def coarse(seconds: float) -> float:
    """A timeout rounded up by at most 3 %.

    The server reads a request faster if it is like an earlier one, so timeouts should not differ by
    microseconds. The client itself keeps the exact time.
    """
    mantissa, exponent = math.frexp(seconds)
    return math.ldexp(math.ceil(mantissa * 64), exponent - 6)


def _body(item: Item) -> bytes:
    """The request with the fields that it needs on a stream. protobuf reads fields in any order,
    but the server knows a request again only if they are in the order of their numbers."""
    data, timeout = item.data, item.timeout_seconds
    name = _network(data)
    more: list[bytes] = []
    if timeout is not None and timeout <= MAX_TIMEOUT_SECONDS / 2:
        more += (b"\x39", _DOUBLE.pack(coarse(timeout)))
    if item.trace:
        more.append(_text(0x5A, item.trace.get("traceparent", "")))
        if state := item.trace.get("tracestate"):
            more.append(_text(0x62, state))
    end = _end(data) if more else len(data)
    return b"".join((name, _text(0x12, item.id), data[len(name) : end], *more, data[end:]))


def _end(data: bytes) -> int:
    """Where the attachments begin, which have the last number; the end if there are none."""
    if len(data) <= ATTACHMENT_BYTES:
        return len(data)
    fields = framing.split(data, 0, len(data), framing.ATTACHMENTS)
    if fields is None or not fields.payloads:
        return len(data)
    start, stop = fields.payloads[0]
    return start - 1 - len(varint(stop - start))


def _text(tag: int, text: str) -> bytes:
    data = text.encode()
    return bytes((tag,)) + varint(len(data)) + data


def _network(data: bytes) -> bytes:
    """The first field, if it is a network's name of less than 128 bytes."""
    return data[: data[1] + 2] if len(data) > 1 and data[0] == 0x0A and data[1] < 0x80 else b""
