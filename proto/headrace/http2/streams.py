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
        send_window, receive_window: how many bytes this end and the peer may send.
        reader: puts its messages together. None if what comes is not read.
        length: how many bytes of data the peer announced; -1 if it did not.
        received: how many have come.
        remote_ended, local_ended: whether the peer and this end have said that nothing follows.
        has_head: whether the peer's first header block has come.
        pending: data that flow control holds back, in order.
        pending_bytes: the size of that.
        final: the block that ends the stream when all data have been sent.
        held: bytes of `Room` that the message takes which is coming.
        unread: bytes of whole messages that wait for their reader.
        answered: whether the peer got something for opening this stream.
        owner: what the owner of the connection keeps with the stream.
    """

    __slots__ = (
        "answered",
        "ends",
        "final",
        "has_head",
        "held",
        "id",
        "length",
        "local_ended",
        "owner",
        "pending",
        "pending_bytes",
        "reader",
        "receive_window",
        "received",
        "remote_ended",
        "send_window",
        "unread",
    )

    def __init__(self, number: int, send_window: int, receive_window: int) -> None:
        self.id = number
        self.send_window = send_window
        self.receive_window = receive_window
        self.reader: MessageReader | None = None
        self.length = -1
        self.received = 0
        self.remote_ended = False
        self.local_ended = False
        self.has_head = False
        self.pending: deque[Buffer] = deque()
        self.pending_bytes = 0
        self.final: bytes | None = None
        self.ends = False
        self.held = 0
        self.unread = 0
        self.answered = False
        self.owner: Any = None
