"""One stream of a connection."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.http2.messages import MessageReader

Buffer: TypeAlias = "bytes | bytearray | memoryview"


@dataclass(slots=True, eq=False, repr=False)
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

    id: int
    send_window: int
    receive_window: int
    opened: float
    cost: float = 0.0
    is_open: bool = True
    has_head: bool = False
    reads: bool = False
    encoding: str = "identity"
    reader: MessageReader | None = None
    length: int = -1
    received: int = 0
    remote_ended: bool = False
    local_ended: bool = False
    held: int = 0
    unread: int = 0
    waiting: int = 0
    answered: bool = False
    pending: deque[Buffer] | None = None
    pending_bytes: int = 0
    ends: bool = False
    final: bytes | None = None
    owner: Any = None
