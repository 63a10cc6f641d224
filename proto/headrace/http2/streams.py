"""One stream of a connection."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

from headrace.http2.messages import MessageReader

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class Stream:
    """One stream. Belongs to its `Connection`, which alone changes it.

    Attributes:
        id: its number.
        opened: when it was opened, in seconds.
        cost: what the peer's patience paid for its header block, and gets back with the answer.
        is_open: whether the connection still knows it.
        has_head: whether the peer's first header block has come.
        reads: whether the messages that come are read.
        encoding: how messages are compressed that say so.
        reader: puts messages together that come in pieces. None until one does.
        length: how many bytes of data the peer announced; -1 if it did not.
        received: how many have come.
        remote_ended, local_ended: whether the peer and this end have said that nothing follows.
        receive_window, send_window: how many bytes the peer and this end may send.
        held: bytes of `Room` that the message takes which is coming.
        unread: bytes that whole messages take which wait for their reader.
        waiting: how many those are.
        answered: whether a response has begun.
        pending: data that the peer's windows hold back, in order. None if there never were any.
        pending_bytes: the size of that.
        ends: whether the stream ends with the last of them.
        final: the header block that ends the stream after them.
        owner: what the owner of the connection keeps with the stream.
    """

    __slots__ = (
        "answered",
        "cost",
        "encoding",
        "ends",
        "final",
        "has_head",
        "held",
        "id",
        "is_open",
        "length",
        "local_ended",
        "opened",
        "owner",
        "pending",
        "pending_bytes",
        "reader",
        "reads",
        "receive_window",
        "received",
        "remote_ended",
        "send_window",
        "unread",
        "waiting",
    )

    def __init__(self, number: int, send_window: int, receive_window: int, now: float) -> None:
        self.id = number
        self.opened = now
        self.cost = 0.0
        self.is_open = True
        self.has_head = False
        self.reads = False
        self.encoding = "identity"
        self.reader: MessageReader | None = None
        self.length = -1
        self.received = 0
        self.remote_ended = False
        self.local_ended = False
        self.receive_window = receive_window
        self.send_window = send_window
        self.held = 0
        self.unread = 0
        self.waiting = 0
        self.answered = False
        self.pending: deque[Buffer] | None = None
        self.pending_bytes = 0
        self.ends = False
        self.final: bytes | None = None
        self.owner: Any = None
