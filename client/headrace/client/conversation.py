"""One InferStream as a state machine: which requests are in flight, which messages to send.

It does no input or output and has no threads. The synchronous and the asyncio client drive it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from headrace.client import errors
from headrace.client.outputs import Outputs
from headrace.client.plans import plan
from headrace.client.sessions.progress import SessionProgress
from headrace.client.shared_memory.loan import Loan
from headrace.client.shared_memory.sharing import Sharing
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import errors as wire_errors
from headrace.wire import stream
from headrace.wire.codec import Buffer, CodecError
from headrace.wire.message import Attachments

Result: TypeAlias = "tuple[int, Outputs | errors.Error]"

MAX_COALESCED_REQUESTS: Final = 64
MAX_COALESCED_BYTES: Final = 256 * 1024
MAX_COPIED_BYTES: Final = 128 * 1024
"""Smaller requests wait for others: a message costs more than a copy of their tensors."""
SLACK_SECONDS: Final = 5.0
"""How long the client waits for the stream's end when all results have come, and how much longer
than a request's time limit it waits for the next result. The server counts from when it has read
the request, and tells what is late."""


class ConversationPlace:
    """Where a stream is: with the one server of a client. A client for several servers has a place
    that moves. Not thread-safe.

    Attributes:
        attempts: how often a request is sent at most.
    """

    attempts = 1

    def __init__(self, client: Any) -> None:
        self.client = client

    def take(self) -> Any:
        """The client of the server that the stream begins at.

        Raises:
            Unavailable: no server is known.
        """
        return self.client

    def heard(self) -> None:
        """Notes a message of the server."""

    def repeats(self, _error: errors.Error) -> bool:
        """Whether a request that the server refused is sent again elsewhere."""
        return False

    def leave(self) -> float:
        """Leaves the server because it refuses requests. Returns seconds to wait before the next
        `take`."""
        return 0.0

    def lost(self, _error: errors.Error) -> float | None:
        """Notes that the stream broke.

        Returns:
            Seconds to wait before the next `take`; None if the error is final.
        """
        return None

    def pause_after(self, error: errors.Error, *, closed: bool) -> float:
        """Seconds to wait before the next `take`, after the stream broke.

        Args:
            closed: whether nobody waits for results any more, so that every error is final.

        Raises:
            Error: `error`, if it is final.
        """
        pause = None if closed else self.lost(error)
        if pause is None:
            raise error from None
        return pause

    def end(self) -> None:
        """Notes that the stream has ended. Idempotent."""


class Conversation:
    """Numbers requests from 0, packs waiting requests into one message, and matches replies.

    A request with attachments is serialised, or copied, when it is submitted, and its arrays may
    change afterwards.

    If the stream may move, each request is kept until it has its result. One that a server refuses,
    though another may take it, waits until the server has answered all others. Then the stream
    moves, and what is unanswered is sent again.

    Args:
        encode: makes a request and its attachments, as `RequestEncoder.encode` does.
        place: where the stream is.
        sharing: puts requests into shared memory; None for messages alone.
        progress: that of the session that the requests belong to, if they do.
        failed: gets the error of each request that fails.
        in_flight: how many requests may be unanswered at a time.
        timeout: the time limit of each request, in seconds.
    """

    def __init__(
        self,
        encode: Callable[..., tuple[pb.InferRequest, list[Buffer]]],
        place: ConversationPlace,
        *,
        sharing: Sharing | None = None,
        progress: SessionProgress | None = None,
        failed: Callable[[errors.Error], object] = lambda _: None,
        in_flight: int = 32,
        outputs: Sequence[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        performance_counts: bool = False,
    ) -> None:
        if in_flight < 1:
            raise errors.invalid("in_flight", f"in_flight is {in_flight}; at least 1 is needed")
        self.place = place
        self._encode = encode
        self._sharing = sharing
        self._failed = failed
        self._progress = progress
        self._in_flight = in_flight
        timeout = None if timeout is None else plan.checked_seconds(timeout)
        self._timeout = plan.patience(timeout)
        self._due = 0.0
        self._options: dict[str, Any] = {
            "outputs": outputs,
            "priority": priority,
            "timeout_seconds": 0.0 if timeout is None else timeout,
            "performance_counts": performance_counts,
        }
        self._next_index = 0
        # For each request, its loan, or what was sent instead if that may become one.
        self._unanswered: dict[int, Loan | pb.InferRequest | None] = {}
        # Results of a session that came before those of earlier requests.
        self._early: dict[int, Outputs | errors.Error] = {}
        self._next_result = 0
        self._waiting: list[stream.StreamRequest] = []
        self._waiting_bytes = 0
        self._messages: deque[bytes] = deque()
        # Of a stream that may move: what was sent, how often, what was refused, and what the user
        # has cancelled.
        self._kept: dict[int, tuple[pb.InferRequest, list[Buffer]]] = {}
        self._tries: dict[int, int] = {}
        self._refused: set[int] = set()
        self._unwanted: set[int] = set()

    @property
    def unanswered(self) -> int:
        """The number of requests without a result."""
        return len(self._unanswered)

    @property
    def has_room(self) -> bool:
        """Whether another request may be submitted."""
        return not self._refused and len(self._unanswered) + len(self._early) < self._in_flight

    @property
    def must_move(self) -> bool:
        """Whether nothing but refused requests is left on this stream."""
        return bool(self._refused) and len(self._refused) == self.unanswered

    @property
    def seconds_left(self) -> float | None:
        """How long to wait for the next result at most; None for no limit. A server that answers
        no request within its time limit answers none any more."""
        if self._timeout is None or not self._unanswered:
            return None
        return max(0.0, self._due - time.monotonic())

    @property
    def has_limit(self) -> bool:
        """Whether the requests have a time limit."""
        return self._timeout is not None

    @property
    def has_full_message(self) -> bool:
        """Whether there is a message to send that will not grow any more."""
        return bool(self._messages)

    def submit(self, inputs: Mapping[str, Any]) -> Result | None:
        """Adds a request. Returns its result at once if the inputs do not fit the network, and no
        earlier request of a session has to end first."""
        self._wait_again()
        index = self._next_index
        self._next_index += 1
        try:
            message, attachments = self._encode(inputs, identifier=str(index), **self._options)
        except errors.InvalidArgument as error:
            self._failed(error)
            return self._not_sent(index, error)
        except errors.FailedPrecondition as error:
            self._failed(error)
            if self._progress is None:
                raise
            return self._not_sent(index, error)  # the session is over
        if self.place.attempts > 1:  # the caller's arrays may change, so they are copied
            attachments = [bytes(part) for part in attachments]
            self._kept[index] = message, attachments
        if self._sharing is None:
            self._unanswered[index] = None
            self._add(message, attachments)
            return None
        loan = self._sharing.lend(message, attachments)
        self._unanswered[index] = loan or message
        self._add(message, () if loan else attachments)
        return None

    def _wait_again(self) -> None:
        if self._timeout is not None:
            self._due = time.monotonic() + self._timeout + SLACK_SECONDS

    def _not_sent(self, index: int, error: errors.Error) -> Result | None:
        in_order = self._in_order([(index, error)])
        return in_order[0] if in_order else None

    def _in_order(self, results: list[Result]) -> list[Result]:
        """The results that may be told now. Those of a session come in the order of its requests,
        although the server may tell one in a message before one in shared memory."""
        if self._progress is None:
            return results
        self._early.update(results)
        told: list[Result] = []
        while self._next_result in self._early:
            told.append((self._next_result, self._early.pop(self._next_result)))
            self._next_result += 1
        return told

    def _add(self, message: pb.InferRequest, attachments: Attachments) -> None:
        size = message.ByteSize() + sum(map(len, attachments))
        if self._waiting_bytes + size > MAX_COALESCED_BYTES:
            self._pack()
        waits = size < MAX_COPIED_BYTES
        if waits:
            attachments = [
                bytes(attachment) for attachment in attachments
            ]  # their arrays may change meanwhile
        self._waiting.append(stream.StreamRequest(message, attachments))
        self._waiting_bytes += size
        if not waits or len(self._waiting) >= MAX_COALESCED_REQUESTS:
            self._pack()

    def cancel(self, index: int | None = None) -> None:
        """Asks the server to cancel one request, or all that are unanswered."""
        chosen = self._unanswered.keys() if index is None else self._unanswered.keys() & {index}
        if self._kept:
            self._unwanted |= chosen
        if chosen:
            self._pack()
            names = [str(number) for number in sorted(chosen)]
            self._messages.append(stream.serialize_infer_stream_request([], names))

    def move(self) -> list[Result]:
        """Has everything that is unanswered sent again, on another stream.

        Returns:
            The results of requests that were cancelled meanwhile, which are not sent again.
        """
        self._waiting, self._waiting_bytes = [], 0
        self._messages.clear()
        self._refused.clear()
        unwanted = [index for index in self._unanswered if index in self._unwanted]
        for index in unwanted:
            self._end(index)
        for index in self._unanswered:
            self._add(*self._kept[index])
        return [(index, errors.cancelled()) for index in unwanted]

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
        """The results that a message of the server brings. Requests that the server did not find in
        shared memory are not among them: they wait to be sent again.

        Raises:
            Internal: the message breaks the protocol.
        """
        try:
            results = stream.parse_infer_stream_reply(data).results
        except CodecError as error:
            raise errors.bad_reply(error) from error
        if results:
            self._wait_again()
        found = [each for result in results if (each := self._received(result)) is not None]
        return self._in_order(found)

    def ended(self) -> errors.Error | None:
        """Handles the end of the stream, which is an error if requests are unanswered."""
        if not self._unanswered:
            return None
        return errors.bad_reply(f"the stream ended with {self.unanswered} request(s) unanswered")

    def close(self) -> None:
        """Gives up the requests without a result. Idempotent."""
        self._kept.clear()
        left, self._unanswered = self._unanswered, {}
        for each in left.values():
            if isinstance(each, Loan):
                each.give_up()
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.end_stream()

    def _received(self, result: stream.StreamResult) -> Result | None:
        index = self._index(result.id)
        sent = self._unanswered[index]
        outcome = _outcome(result, sent if isinstance(sent, Loan) else None)
        if isinstance(outcome, errors.Error):
            if self._repeats(index, outcome):
                self._refused.add(index)
                return None
            again = sent.failed(outcome) if isinstance(sent, Loan) else None
            # Later requests of a session may be on their way, so none is sent again.
            if again is not None and self._progress is None:
                self._unanswered[index] = again[0]
                self._add(*again)
                return None
        elif isinstance(sent, pb.InferRequest) and self._sharing is not None:
            self._sharing.learn(sent, outcome)
        self._end(index)
        if isinstance(outcome, errors.Error):
            self._failed(outcome)
        if self._progress is not None:
            if isinstance(outcome, errors.Error):
                self._progress.failed(outcome)
            else:
                self._progress.completed(end=False)
        return index, outcome

    def _repeats(self, index: int, error: errors.Error) -> bool:
        """Whether a refused request is sent again elsewhere."""
        if index in self._unwanted or index not in self._kept or not self.place.repeats(error):
            return False
        self._tries[index] = tries = self._tries.get(index, 1) + 1
        return tries <= self.place.attempts

    def _end(self, index: int) -> None:
        """Forgets a request that has its result."""
        del self._unanswered[index]
        if self._kept:
            self._kept.pop(index, None)
            self._tries.pop(index, None)
            self._unwanted.discard(index)

    def _pack(self) -> None:
        if self._waiting:
            self._messages.append(stream.serialize_infer_stream_request(self._waiting))
            self._waiting = []
            self._waiting_bytes = 0

    def _index(self, identifier: str) -> int:
        index = int(identifier) if identifier.isdecimal() else -1
        if index not in self._unanswered:
            raise errors.bad_reply(f"a result for {identifier!r}, which is not in flight")
        return index


def _outcome(result: stream.StreamResult, loan: Loan | None) -> Outputs | errors.Error:
    if result.error is not None:
        return errors.from_details(wire_errors.from_status(result.error))
    if result.reply is None:
        return errors.bad_reply("a result of neither a reply nor an error")
    try:
        if loan is not None:
            return loan.receive(result.reply, result.attachments)
        return Outputs(result.reply, result.attachments)
    except CodecError as error:
        return errors.bad_reply(error)
    except errors.Internal as error:
        return error
