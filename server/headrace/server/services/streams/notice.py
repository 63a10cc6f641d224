"""What an InferStream tells besides results."""

from __future__ import annotations

from headrace.wire.stream import StreamLimits


class Notice:
    """It waits among the results, at most once.

    Attributes:
        wanted: whether the client has asked for the limits.
        limits: those that are to be told.
        waits: whether it is among the results.
    """

    __slots__ = ("limits", "messages_read", "waits", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self.limits: StreamLimits | None = None
        self.messages_read = 0
        self.waits = False
