"""What came of one call, without sockets."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import grpc

from headrace.client.channel.channel import CallFailed, Message, Metadata, Request
from headrace.http2.calls import ResponseHead, Trailers, code_of_http
from headrace.http2.connection import Ended, Received, Refused, Reset, Responded
from headrace.http2.frames import ErrorCode
from headrace.http2.messages import BadMessage, Packed, TooLarge
from headrace.http2.streams import Stream

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_OK: Final = grpc.StatusCode.OK
# What a stream's end by RST_STREAM means; INTERNAL for all others (PROTOCOL-HTTP2.md, "Errors").
_RESETS: Final = {
    ErrorCode.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: grpc.StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}


class Answer:
    """What came of a call that brings one reply. Not thread-safe.

    Args:
        block: the call's header block.
        request: the one message that it sends; None if it sends messages later.

    Attributes:
        stream: the call's stream; None before it is open.
        message: the reply.
        trailing: the metadata at its end.
        failure: why there is none.
        is_over: whether nothing more comes.
    """

    __slots__ = ("_head", "block", "failure", "is_over", "message", "request", "stream", "trailing")

    def __init__(self, block: bytes, request: Request | None) -> None:
        self.block = block
        self.request = request
        self.stream: Stream | None = None
        self.message: Message | Packed | None = None
        self.trailing: Metadata = ()
        self.failure: CallFailed | None = None
        self.is_over = False
        self._head: ResponseHead | None = None

    @property
    def code(self) -> grpc.StatusCode:
        """The status of a call that is over."""
        return _OK if self.failure is None else self.failure.code

    def take(self, event: Any) -> int:
        """Takes an event of the stream. Returns the bytes of a message that is read with that."""
        kind = type(event)
        if kind is Received:
            return self._received(event.message)
        if kind is Ended:
            if not self.is_over:
                self._ended(event.trailers)
        elif kind is Responded:
            self._head = event.head
            if not (event.head.is_grpc or event.stream.remote_ended):
                self._foreign(event.head)
        elif kind is Reset:
            if event.code == ErrorCode.REFUSED_STREAM:
                self.refused("the server refused the call before it began")
            else:
                code = _RESETS.get(event.code, grpc.StatusCode.INTERNAL)
                self.fail(CallFailed(code, f"the server reset the call: {_name(event.code)}"))
        elif kind is Refused:
            self.fail(CallFailed(_CODES[event.code], f"CLIENT: {event.why}"))
        return 0

    def fail(self, failure: CallFailed) -> None:
        """Ends the call, if it has not ended."""
        if not self.is_over:
            self.is_over = True
            self.failure = failure

    def refused(self, why: str) -> None:
        """Ends a call that the server surely has not begun."""
        self.fail(CallFailed(grpc.StatusCode.UNAVAILABLE, why, begun=False))

    def unpack(self) -> None:
        """Unpacks the reply if it is compressed, which may take long."""
        if self.failure is None:
            try:
                self.message = unpacked(self.message)
            except CallFailed as failure:
                self.failure = failure

    def _received(self, message: Message | Packed) -> int:
        if self.message is not None:
            self.fail(CallFailed(grpc.StatusCode.INTERNAL, "the server sent a second reply"))
        else:
            self.message = message
        return len(message)

    def _ended(self, trailers: Trailers | None) -> None:
        head = self._head
        if trailers is None or trailers.code is None:
            if head is not None and (head.status != 200 or not head.is_grpc):
                self._foreign(head)
            else:
                self.fail(
                    CallFailed(
                        grpc.StatusCode.UNKNOWN, "the server ended the call without a status"
                    )
                )
            return
        self.trailing = trailers.metadata
        code = _CODES.get(trailers.code, grpc.StatusCode.UNKNOWN)
        if code is not _OK:
            self.fail(CallFailed(code, trailers.message, trailers.metadata))
        elif self._lacks_reply():
            self.fail(CallFailed(grpc.StatusCode.INTERNAL, "the server sent OK, and no reply"))
        self.is_over = True

    def _lacks_reply(self) -> bool:
        return self.message is None

    def _foreign(self, head: ResponseHead) -> None:
        """Ends a call that is not answered by gRPC."""
        code = _CODES[code_of_http(head.status)]
        self.fail(CallFailed(code, f"the answer is not gRPC's: HTTP status {head.status}"))


class StreamAnswer(Answer):
    """What came of a call with many messages.

    Attributes:
        messages: those that are not read yet. The windows bound them.
        early: those that were sent before the server allowed the stream.
        ends: whether the caller sends no more.
    """

    __slots__ = ("early", "ends", "messages")

    def __init__(self, block: bytes) -> None:
        super().__init__(block, None)
        self.messages: deque[Message | Packed] = deque()
        self.early: list[Request] = []
        self.ends = False

    def _received(self, message: Message | Packed) -> int:
        if not self.is_over:
            self.messages.append(message)
        return 0

    def _lacks_reply(self) -> bool:
        return False


def unpacked(message: Any) -> Any:
    """A message, without its compression.

    Raises:
        CallFailed: it is too large, or cannot be unpacked.
    """
    if type(message) is not Packed:
        return message
    try:
        return message.unpack()
    except TooLarge as error:
        why = f"CLIENT: a message of {error.size} bytes or more is larger than allowed"
        raise CallFailed(grpc.StatusCode.RESOURCE_EXHAUSTED, why) from None
    except BadMessage as error:
        raise CallFailed(grpc.StatusCode.INTERNAL, str(error)) from None


def _name(code: int) -> str:
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else str(code)
