"""One call on a connection, and what came of it, without sockets."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

import grpc

from headrace.client.channel.channel import CallFailed, Message, Metadata, Request
from headrace.http2.calls import ResponseHead, Trailers, code_of_http
from headrace.http2.events import MessageRefused, Reset
from headrace.http2.frames import ErrorCode
from headrace.http2.messages import BadMessage, CompressedMessage, TooLarge
from headrace.http2.streams import Stream

C = TypeVar("C")

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_OK: Final = grpc.StatusCode.OK
# What a stream's end by RST_STREAM means; INTERNAL for all others (PROTOCOL-HTTP2.md, "Errors").
_RESETS: Final[dict[int, grpc.StatusCode]] = {
    ErrorCode.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: grpc.StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}


@dataclass(slots=True, eq=False, repr=False)
class Answer(Generic[C]):
    """A call on a connection that brings one reply, and what came of it. Not thread-safe: whoever
    owns the connection has it. A subclass knows who waits.

    Args:
        connection: carries it.
        block: the call's header block.
        request: the one message that it sends; None if it sends messages later.
        due: when its time is up, on the monotonic clock, if the connection shall keep it.

    Attributes:
        stream: the call's stream; None before it is open.
        message: the reply.
        trailing: the metadata at its end.
        failure: why there is none.
        is_over: whether nothing more comes.
    """

    connection: C
    block: bytes
    request: Request | None
    due: float | None = None
    stream: Stream | None = None
    message: Message | CompressedMessage | None = None
    trailing: Metadata = ()
    failure: CallFailed | None = None
    is_over: bool = False
    _head: ResponseHead | None = None

    _needs_reply: ClassVar = True

    def told(self) -> None:
        """It is over, or a message of many has come. Called by whoever owns the connection."""

    def sent(self) -> None:
        """Nothing is held back any more."""

    @property
    def code(self) -> grpc.StatusCode:
        """The status of a call that is over."""
        return _OK if self.failure is None else self.failure.code

    def received(self, message: Any) -> bool:
        """Takes a message. Returns whether it is read with that."""
        if self.message is not None:
            self.fail(CallFailed(grpc.StatusCode.INTERNAL, "the server sent a second reply"))
        else:
            self.message = message
        return True

    def responded(self, head: ResponseHead, *, alone: bool) -> None:
        """Takes the beginning of the response.

        Args:
            alone: whether it is also the end.
        """
        self._head = head
        if not head.is_grpc and not alone:
            self._foreign(head)

    def ended(self, trailers: Trailers | None) -> None:
        """Takes the end of the response."""
        if trailers is None or trailers.code is None:
            head = self._head
            if head is not None and (head.status != 200 or not head.is_grpc):
                self._foreign(head)
            else:
                why = "the server ended the call without a status"
                self.fail(CallFailed(grpc.StatusCode.UNKNOWN, why))
            return
        self.trailing = trailers.metadata
        if trailers.code:
            code = _CODES.get(trailers.code, grpc.StatusCode.UNKNOWN)
            self.fail(CallFailed(code, trailers.message, trailers.metadata))
        elif self._needs_reply and self.message is None:
            self.fail(CallFailed(grpc.StatusCode.INTERNAL, "the server sent OK, and no reply"))
        self.is_over = True

    def broke_off(self, event: Reset | MessageRefused) -> None:
        """Takes an end that is none of gRPC's."""
        if isinstance(event, MessageRefused):
            self.fail(CallFailed(_CODES[event.code], f"CLIENT: {event.why}"))
        elif event.code == ErrorCode.REFUSED_STREAM:
            self.refused("the server refused the call before it began")
        else:
            code = _RESETS.get(event.code, grpc.StatusCode.INTERNAL)
            self.fail(CallFailed(code, f"the server reset the call: {_name(event.code)}"))

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

    def _foreign(self, head: ResponseHead) -> None:
        """Ends a call that is not answered by gRPC."""
        code = _CODES[code_of_http(head.status)]
        self.fail(CallFailed(code, f"the answer is not gRPC's: HTTP status {head.status}"))


class StreamAnswer(Answer[C]):
    """What came of a call with many messages.

    Attributes:
        messages: those that are not read yet. The windows bound them.
        early: those that were sent before the server allowed the stream.
        ends: whether the caller sends no more.
    """

    __slots__ = ("early", "ends", "messages")

    _needs_reply = False

    def __init__(self, connection: C, block: bytes, due: float | None = None) -> None:
        super().__init__(connection, block, None, due)
        self.messages: deque[Message | CompressedMessage] = deque()
        self.early: list[Request] = []
        self.ends = False

    def received(self, message: Any) -> bool:
        self.messages.append(message)
        self.told()
        return False


def unpacked(message: Any) -> Any:
    """A message, without its compression.

    Raises:
        CallFailed: it is too large, or cannot be unpacked.
    """
    if type(message) is not CompressedMessage:
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
