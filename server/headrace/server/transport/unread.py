"""Replies of single calls that their callers have not read yet."""

from __future__ import annotations

from functools import partial
from typing import Final

from headrace.runtime.errors import ResourceExhausted
from headrace.server.transport.call import IncomingCall, Reply
from headrace.server.transport.shares import Shares, release_soon

_SMALL_BYTES: Final = 4096
"""The slots for calls bound the number of replies, so small ones need no count of their bytes."""


class UnreadReplies:
    """Counts the bytes of replies until they have been sent. Belongs to the event loop's thread.

    A caller whose flow control stops the server would otherwise fill its memory with replies.

    Args:
        capacity: the most bytes. One connection gets at most half.
    """

    def __init__(self, capacity: int) -> None:
        self.memory = Shares(capacity)

    def hold(self, reply: Reply, holder: str, call: IncomingCall) -> None:
        """Counts a reply until its call is over, which it is when the reply has been sent.

        Args:
            holder: as in `Shares`.

        Raises:
            ResourceExhausted: the caller, or all callers, have too much left to read.
        """
        size = sum(map(len, reply)) if isinstance(reply, list) else len(reply)
        if size < _SMALL_BYTES:
            return
        if not self.memory.take(holder, size):
            taken, capacity = self.memory.taken, self.memory.capacity
            raise ResourceExhausted(
                f"the call was carried out, but its reply of {size} bytes has no room: {taken} of "
                f"at most {capacity} bytes of replies wait to be read (--max-message-bytes sets "
                "the most), and one connection gets no more of them than are left; send fewer "
                "requests at a time, or send them over InferStream, which waits for its reader"
            )
        call.when_over(partial(self._sent, holder, size))

    def _sent(self, holder: str, size: int) -> None:
        self.memory.give_back(holder, size)
        release_soon(self.memory)
