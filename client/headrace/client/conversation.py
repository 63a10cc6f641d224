"""One InferStream as a state machine: which requests are in flight, which messages to send.

It does no input or output and has no threads. The synchronous and the asyncio client drive it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from headrace.client import errors
from headrace.client.inputs import RequestEncoder
from headrace.client.outputs import Outputs
from headrace.client.plans import plan
from headrace.wire import errors as wire_errors
from headrace.wire import stream
from headrace.wire.codec import CodecError

Result: TypeAlias = "tuple[int, Outputs | errors.Error]"

MAX_COALESCED_REQUESTS: Final = 64
MAX_COALESCED_BYTES: Final = 256 * 1024


class Conversation:
    """Numbers requests from 0, packs waiting requests into one message, and matches replies.

    A request with attachments is serialised when it is submitted, and its arrays may change
    afterwards.

    Args:
        in_flight: how many requests may be unanswered at a time.
        timeout: the time limit of each request, in seconds.
    """

    def __init__(
        self,
        encoder: RequestEncoder,
        *,
        in_flight: int = 32,
        outputs: Sequence[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        performance_counts: bool = False,
    ) -> None:
        if in_flight < 1:
            raise errors.invalid("in_flight", f"in_flight is {in_flight}; at least 1 is needed")
        self._encoder = encoder
        self._in_flight = in_flight
        self._options: dict[str, Any] = {
            "outputs": outputs,
            "priority": priority,
            "timeout_seconds": 0.0 if timeout is None else plan.checked_seconds(timeout),
            "performance_counts": performance_counts,
        }
        self._next_index = 0
        self._unanswered: set[int] = set()
        self._waiting: list[stream.StreamRequest] = []
        self._waiting_bytes = 0
        self._messages: deque[bytes] = deque()

    @property
    def unanswered(self) -> int:
        """The number of requests without a result."""
        return len(self._unanswered)

    @property
    def has_room(self) -> bool:
        """Whether another request may be submitted."""
        return len(self._unanswered) < self._in_flight

    @property
    def has_full_message(self) -> bool:
        """Whether there is a message to send that will not grow any more."""
        return bool(self._messages)

    def submit(self, inputs: Mapping[str, Any]) -> Result | None:
        """Adds a request. Returns its result at once if the inputs do not fit the network."""
        index = self._next_index
        self._next_index += 1
        try:
            message, attachments = self._encoder.encode(
                inputs, identifier=str(index), **self._options
            )
        except errors.InvalidArgument as error:
            return index, error
        self._unanswered.add(index)
        self._waiting.append(stream.StreamRequest(message, attachments))
        self._waiting_bytes += message.ByteSize()
        if (
            attachments
            or len(self._waiting) >= MAX_COALESCED_REQUESTS
            or self._waiting_bytes >= MAX_COALESCED_BYTES
        ):
            self._pack()
        return None

    def cancel(self, index: int | None = None) -> None:
        """Asks the server to cancel one request, or all that are unanswered."""
        chosen = self._unanswered if index is None else self._unanswered & {index}
        if chosen:
            self._pack()
            names = [str(number) for number in sorted(chosen)]
            self._messages.append(stream.serialize_infer_stream_request([], names))

    def full_messages(self) -> list[bytes]:
        """The full messages, to be sent at once. What is left may still grow."""
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def all_messages(self) -> list[bytes]:
        """The messages with everything that waits, to be sent at once."""
        self._pack()
        return self.full_messages()

    def receive(self, data: bytes) -> list[Result]:
        """The results that a message of the server brings.

        Raises:
            Internal: the message breaks the protocol.
        """
        try:
            results = stream.parse_infer_stream_reply(data)
        except CodecError as error:
            raise errors.bad_reply(error) from error
        return [(self._answered(result.id), _outcome(result)) for result in results]

    def ended(self) -> errors.Error | None:
        """Handles the end of the stream, which is an error if requests are unanswered."""
        if not self._unanswered:
            return None
        return errors.bad_reply(f"the stream ended with {self.unanswered} request(s) unanswered")

    def _pack(self) -> None:
        if self._waiting:
            self._messages.append(stream.serialize_infer_stream_request(self._waiting))
            self._waiting = []
            self._waiting_bytes = 0

    def _answered(self, identifier: str) -> int:
        index = int(identifier) if identifier.isdecimal() else -1
        if index not in self._unanswered:
            raise errors.bad_reply(f"a result for {identifier!r}, which is not in flight")
        self._unanswered.remove(index)
        return index


def _outcome(result: stream.StreamResult) -> Outputs | errors.Error:
    if result.error is not None:
        return errors.from_details(wire_errors.from_status(result.error))
    if result.reply is None:
        return errors.bad_reply("a result of neither a reply nor an error")
    try:
        return Outputs(result.reply, result.attachments)
    except CodecError as error:
        return errors.bad_reply(error)
