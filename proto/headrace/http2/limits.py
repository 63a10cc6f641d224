"""What a peer may do, and what it has left of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from headrace.http2.faults import ConnectionFault
from headrace.http2.frames import DEFAULT_WINDOW, MIN_FRAME_BYTES, ErrorCode


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one connection.

    Attributes:
        streams: how many streams the peer may have open. Streams beyond are refused so that the
            peer may repeat them.
        window_bytes: how much the peer may send on a stream before somebody has read it. A message
            that does not fit gets the room that it needs from `Room`.
        connection_bytes: how many bytes of whole messages may wait for their readers, of all
            streams.
        frame_bytes: the largest frame.
        header_bytes: the largest list of header fields, as RFC 9113, 6.5.2 counts it. A list up to
            four times as large is read and its call refused; a larger one ends the connection.
        message_bytes: the largest message. 0 for no limit.

    Raises:
        ValueError: a limit is smaller than HTTP/2 lets a peer count on before it knows the limits.
    """

    streams: int = 1024
    window_bytes: int = 1 << 20
    connection_bytes: int = 16 << 20
    frame_bytes: int = 1 << 20
    header_bytes: int = 24 << 10
    message_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name, value, least in (
            ("window_bytes", self.window_bytes, DEFAULT_WINDOW),
            ("connection_bytes", self.connection_bytes, DEFAULT_WINDOW),
            ("frame_bytes", self.frame_bytes, MIN_FRAME_BYTES),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}, and HTTP/2 needs at least {least}")


class Room(Protocol):
    """The memory for messages that have begun to come. Connections share it."""

    def use(self, size: int) -> bool:
        """Takes `size` bytes. Returns whether there was room."""

    def free(self, size: int) -> None:
        """Gives `size` bytes back."""


class Endless:
    """Room without an end, for a peer that is trusted, and for tests."""

    def use(self, _size: int) -> bool:
        return True

    def free(self, _size: int) -> None:
        """Does nothing."""


PING_COST: Final = 2
SETTINGS_COST: Final = 20
SMALL_COST: Final = 1
"""Of a frame that brings nothing: PRIORITY, WINDOW_UPDATE, empty or tiny DATA, unknown ones."""
RESET_COST: Final = 12
"""Of a stream that the peer resets at once, or that it makes this end reset."""
CALL_GAIN: Final = 16
"""What the peer gets back for a call that was answered, beside what its header block cost."""
SENT_GAIN: Final = 4
"""For data sent to it: it may open two windows and send a PING for them."""
RAPID_SECONDS: Final = 0.1
"""A stream that lived longer before its reset has had its place among the open ones, whose number
is limited. So the cancels of calls that waited for an answer cost no more than a small frame."""

_BLOCK_COST: Final = 2
_FIELDS: Final = 8  # that cost as much again
_KIB_COST: Final = 16  # of what is above 1 KiB: Huffman's code takes long
_MOST: Final = 20_000.0
_A_SECOND: Final = 1_000.0


def decoding(fields: int, size: int) -> float:
    """The cost of a header block of `size` bytes, of which `fields` fields had to be decoded."""
    if not fields:
        return 0.0
    return _BLOCK_COST * (1 + fields / _FIELDS) + _KIB_COST * max(size / 1024 - 1, 0)


class TokenBucket:
    """How much useless work a peer may still cause: a bucket of tokens.

    Frames that cost time and bring nothing take tokens. Each second, each call that is answered and
    all data that are sent give some back. So no honest peer ever runs out: every call pays for its
    own pings, window updates and reset.

    Floods that this ends: CVE-2019-9511 to 9518, CVE-2023-44487 (rapid reset), CVE-2024-27316
    (CONTINUATION), CVE-2025-8671 (resets that this end is made to send).

    Attributes:
        left: the tokens. Whoever earns some adds them here; what exceeds the bucket is lost with
            the next that are spent.
    """

    __slots__ = ("_at", "left")

    def __init__(self, now: float) -> None:
        self.left = _MOST
        self._at = now

    def spend(self, cost: float, now: float, what: str) -> None:
        """
        Raises:
            ConnectionFault: the peer has no tokens left.
        """
        left = (self.left if self.left < _MOST else _MOST) - cost
        if left < 0:
            left = min(_MOST, left + (now - self._at) * _A_SECOND)
            self._at = now
        self.left = left
        if left < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")
