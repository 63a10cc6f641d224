"""The progress of a session, which both clients' sessions share. Not thread-safe."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import grpc

from headrace.client import errors
from headrace.client.errors import Error, FailedPrecondition
from headrace.client.inputs import RequestEncoder
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import Buffer
from headrace.wire.request import MAX_ID_LENGTH

_NOT_OPEN: Final = "session.id"
"""The field that the server names when the session is not open."""


class SessionProgress:
    """The progress of one session.

    Args:
        identifier: the session's id; None for a random one.

    Attributes:
        closed: whether no request may follow.
        streams: whether `infer_many` runs. Until it ends, no other request may begin.

    Raises:
        InvalidArgument: the network keeps no states, or the id is not valid.
        FailedPrecondition: the network is loading, or has failed to load.
    """

    def __init__(self, network: str, encoder: RequestEncoder, identifier: str | None) -> None:
        encoder.check_usable()
        if not encoder.has_states:
            raise errors.invalid(
                "session",
                f"network {network!r} keeps no states between requests; load it with "
                "config={'STATES': 'input=output'}",
            )
        if identifier is not None and not 1 <= len(identifier) <= MAX_ID_LENGTH:
            raise errors.invalid("id", f"the id of a session has 1 to {MAX_ID_LENGTH} characters")
        self.id = secrets.token_hex(16) if identifier is None else identifier
        self.closed = False
        self.streams = False
        self._network = network
        self._encoder = encoder
        self._begun = False  # a request has completed
        self._sent = False
        self._in_flight = 0

    @property
    def must_end(self) -> bool:
        """Whether the session needs an end, because the server may hold it open."""
        return self._sent and not self.closed

    def encode(
        self, inputs: Mapping[str, Any], *, end: bool, options: Mapping[str, Any]
    ) -> tuple[pb.InferRequest, list[Buffer]]:
        """A request and its attachments, which counts as in flight from now on.

        Raises:
            InvalidArgument: as `RequestEncoder.encode`.
            FailedPrecondition: the session has ended, or `infer_many` runs.
        """
        self._raise_if_streams()
        return self._encode(inputs, end=end, **options)

    def encode_on_stream(
        self, inputs: Mapping[str, Any], **options: Any
    ) -> tuple[pb.InferRequest, list[Buffer]]:
        """Does the same as `encode` for a request of `infer_many`."""
        return self._encode(inputs, end=False, **options)

    def begin_stream(self) -> None:
        """Notes that `infer_many` begins.

        Raises:
            FailedPrecondition: the session has ended, or other requests are in flight.
        """
        self._raise_if_closed()
        self._raise_if_streams()
        if self._in_flight:
            raise self._not_now(f"{self._in_flight} of its requests are in flight; wait for them")
        self.streams = True

    def end_stream(self) -> None:
        """Notes that `infer_many` has ended. Requests without a result count as failed."""
        self._in_flight = 0
        self.streams = False

    def _encode(
        self, inputs: Mapping[str, Any], *, end: bool, **options: Any
    ) -> tuple[pb.InferRequest, list[Buffer]]:
        """A request. It starts the session if no request has completed and none is in flight."""
        self._raise_if_closed()
        start = not self._begun and not self._in_flight
        session = pb.Session(id=self.id, start=start, end=end)
        request = self._encoder.encode(inputs, session=session, **options)
        self._sent = True
        self._in_flight += 1
        return request

    def encode_end(self) -> bytes:
        """A serialised request that only ends the session. It counts as in flight from now on."""
        self._raise_if_closed()
        self._raise_if_streams()
        self._in_flight += 1
        session = pb.Session(id=self.id, end=True)
        request = pb.InferRequest(network=self._network, session=session)
        return request.SerializeToString()

    def completed(self, *, end: bool) -> None:
        """Notes that a request in flight has completed."""
        self._in_flight -= 1
        self._begun = True
        self.closed = self.closed or end

    def failed(self, error: BaseException | None) -> None:
        """Notes that a request in flight has failed."""
        self._in_flight -= 1
        if is_not_open(error) and self._begun:
            self.closed = True

    def _raise_if_closed(self) -> None:
        if self.closed:
            raise self._refused("has ended; begin another one with network.session()", "ENDED")

    def _raise_if_streams(self) -> None:
        if self.streams:
            raise self._not_now("its infer_many runs; close it, or iterate to its end")

    def _not_now(self, why: str) -> FailedPrecondition:
        return self._refused(f"takes no such call now: {why}", "BUSY")

    def _refused(self, why: str, reason: str) -> FailedPrecondition:
        return errors.precondition(f"session {self.id!r} {why}", f"SESSION_{reason}")


def is_not_open(error: BaseException | None) -> bool:
    """Whether a request failed because the server does not have the session open."""
    return (
        isinstance(error, Error)
        and error.code is grpc.StatusCode.FAILED_PRECONDITION
        and error.details.field == _NOT_OPEN
    )
