"""A request whose tensors go through shared memory, or through a message if that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.client import errors
from headrace.client.errors import Error
from headrace.client.outputs import Outputs, decode_reply
from headrace.client.shared_memory.pool import RegionPool
from headrace.client.shared_memory.segment import ClientSegment
from headrace.client.shared_memory.sizes import OutputSizes
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import codec, message
from headrace.wire.shared_memory import attach, in_regions

_UNKNOWN_REGION = "UNKNOWN_REGION"
# After these answers the server does not touch the segment any more, and the request may be sent
# again in a message. The server reports the second one after it has computed the request, so a
# request of a session is not sent again for it.
_NOT_SHARED = frozenset({_UNKNOWN_REGION, "REGION_TOO_SMALL"})
_UNKNOWN_END = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")

Plain: TypeAlias = tuple[pb.InferRequest, list[codec.Buffer]]
"""A request with all of its tensors in the message, and its attachments."""


class Loan:
    """A request in a segment. The segment is given back once: when the reply has been read, or the
    server has answered with an error. It is dropped if it is unknown whether the server still uses
    it."""

    def __init__(
        self, pool: RegionPool, segment: ClientSegment, request: pb.InferRequest, sizes: OutputSizes
    ) -> None:
        self._pool = pool
        self._sizes = sizes
        self._segment: ClientSegment | None = segment
        self.request = request

    @property
    def data(self) -> bytes:
        """The serialised request."""
        return self.request.SerializeToString()

    def read(self, data: bytes) -> Outputs:
        """Does the same as `receive` with a reply as `decode_reply` takes it."""
        try:
            reply, received = message.parse_infer_reply(data)
        except codec.CodecError as error:
            self.give_up()
            raise errors.bad_reply(error) from error
        return self.receive(reply, received)

    def receive(self, reply: pb.InferReply, received: message.Attachments) -> Outputs:
        """The outputs of the reply, in memory of their own. Gives the segment back.

        Raises:
            Internal: the reply breaks the protocol.
        """
        segment = self._segment
        assert segment is not None
        try:
            attachments = list(received)
            for field, tensor in in_regions(reply.outputs, "outputs"):
                place = tensor.shared_memory
                if place.region != segment.name or place.offset + place.bytes > segment.size:
                    raise codec.CodecError(field, "is not a place that the request has named")
                part = segment.memory[place.offset : place.offset + place.bytes]
                attach(tensor, part.copy().data, attachments)
            outputs = Outputs(reply, attachments)
        except codec.CodecError as error:
            self.give_up()
            raise errors.bad_reply(error) from error
        self._end(self._pool.give)
        self._sizes.learn(self.request, outputs)
        return outputs

    def read_message(self, data: bytes) -> Outputs:
        """The outputs of the reply to the request that was sent again.

        Raises:
            Internal: the reply breaks the protocol.
        """
        outputs = decode_reply(data)
        self.learn(outputs)
        return outputs

    def learn(self, outputs: Outputs) -> None:
        """Remembers the sizes in a reply that came in a message."""
        self._sizes.learn(self.request, outputs)

    def failed(self, error: Error) -> Plain | None:
        """Ends the loan after an error. If shared memory was the cause, returns the request, to be
        sent again without it."""
        answered = bool(error.details.reason) and error.code.name not in _UNKNOWN_END
        if not answered:
            self.give_up()
            return None
        lost = error.details.reason == _UNKNOWN_REGION
        is_refused = error.details.reason in _NOT_SHARED
        again = lost or (is_refused and not self.request.HasField("session"))
        plain = self._plain() if again else None
        self._end(self._pool.drop if lost else self._pool.give)
        return plain

    def not_sent(self) -> None:
        """Gives the segment back: the server has not seen the request. Does nothing after the
        end."""
        self._end(self._pool.give)

    def give_up(self) -> None:
        """Drops the segment: nobody waits for the reply any more. Does nothing after the end."""
        self._end(self._pool.drop)

    def _plain(self) -> Plain:
        assert self._segment is not None
        request = pb.InferRequest()
        request.CopyFrom(self.request)
        request.ClearField("output_regions")
        attachments: list[codec.Buffer] = []
        for _, tensor in in_regions(request.inputs, "inputs"):
            place = tensor.shared_memory
            part = self._segment.memory[place.offset : place.offset + place.bytes]
            attach(tensor, part.data, attachments)
        # A stream serialises it later, when the segment may serve another request.
        return request, [bytes(attachment) for attachment in attachments]

    def _end(self, how: Callable[[ClientSegment], None]) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            how(segment)


Packed: TypeAlias = Loan | bytes
"""A request that is ready to be sent: in shared memory, or serialised."""
