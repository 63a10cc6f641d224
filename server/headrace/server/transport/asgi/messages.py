"""gRPC's messages in the bytes of an HTTP body: a flag, a length of four bytes, and the message."""

from __future__ import annotations

from headrace.runtime.errors import InvalidArgument, ResourceExhausted, Unimplemented

_PREFIX_BYTES = 5


def frame(message: bytes) -> bytes:
    """The bytes of one uncompressed message."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Messages:
    """Cuts the received bytes of one call into messages.

    It holds at most one message and what was received with its end, if nobody calls `feed` while
    `take` returns messages.

    Args:
        largest: the most bytes of a message.
    """

    __slots__ = ("_first", "_held", "_largest", "_rest")

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._first = memoryview(b"")  # the beginning of what is held
        self._rest: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        """How many bytes wait."""
        return self._held

    @property
    def lacking(self) -> int:
        """How many bytes of the next message are still to come, as far as that is known."""
        if len(self._first) < _PREFIX_BYTES:
            return 0
        size = int.from_bytes(self._first[1:_PREFIX_BYTES], "big")
        return max(_PREFIX_BYTES + size - self._held, 0)

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the call."""
        self._held += len(data)
        if not self._first:
            self._first = memoryview(data)
        else:
            self._rest.append(data)

    def take(self) -> bytes | None:
        """The next message. None if it has not come whole yet.

        Raises:
            ResourceExhausted: the message is too large. This is known from its length alone.
            Unimplemented: the message is compressed.
            InvalidArgument: the bytes are not gRPC's.
        """
        if self._held < _PREFIX_BYTES:
            return None
        if len(self._first) < _PREFIX_BYTES:
            self._join()
        first = self._first
        size = int.from_bytes(first[1:_PREFIX_BYTES], "big")
        if first[0]:
            if first[0] != 1:
                raise InvalidArgument("the call's bytes are not gRPC messages; use a gRPC client")
            raise Unimplemented("the server reads no compressed messages; send without compression")
        if size > self._largest:
            raise ResourceExhausted(
                f"a message of {size} bytes is larger than the {self._largest} that the server "
                "reads (--max-message-bytes); send less at a time"
            )
        end = _PREFIX_BYTES + size
        if self._held < end:
            return None
        if len(first) < end:
            self._join()
            first = self._first
        self._held -= end
        self._first = first[end:]
        return bytes(first[_PREFIX_BYTES:end])

    def _join(self) -> None:
        self._first = memoryview(b"".join((self._first, *self._rest)))
        self._rest.clear()
