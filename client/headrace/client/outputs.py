"""A reply of Infer as what `infer` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.client import errors, replies
from headrace.client.info import LayerProfile
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import codec, message

# Type checkers see the common case, an array. Few networks have sequences and absent optionals,
# and their users know it.
if TYPE_CHECKING:
    OutputValue: TypeAlias = npt.NDArray[Any]
else:
    OutputValue = np.ndarray | list | None


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the server spent the time, in seconds.

    Attributes:
        queue_seconds: from the request's acceptance to its start.
        execution_seconds: from its start to its end.
        inference_seconds: the part of the execution in the backend.
    """

    queue_seconds: float
    execution_seconds: float
    inference_seconds: float


class Outputs(dict[str, OutputValue]):
    """Output name → array; a list for a sequence, None for an absent optional.

    The arrays are read-only views of the received message and keep it alive. Copy an array before
    you change it. Copy a small part if you keep it for long.

    Attributes:
        timings: where the server spent the time.
        performance_counts: per layer, if they were asked for.
        request_id: the id of the request in the server's log.
        generation, version: those of the network that answered.
    """

    def __init__(self, reply: pb.InferReply, attachments: message.Attachments) -> None:
        values: Any = codec.decode_values(reply.outputs[:], attachments, "outputs")
        super().__init__(values)
        times = reply.timings
        self._times = times.queue_seconds, times.execution_seconds, times.inference_seconds
        counts = reply.performance_counts
        profiles: list[LayerProfile] = replies.layer_profiles(counts) if counts else []
        self.performance_counts = profiles
        self.request_id = reply.id
        self.generation = reply.generation
        self.version = reply.version

    @property
    def timings(self) -> Timings:
        return Timings(*self._times)


def decode_reply(data: bytes) -> Outputs:
    """The outputs of a serialised InferReply.

    Raises:
        Internal: the reply breaks the protocol.
    """
    try:
        return Outputs(*message.parse_infer_reply(data))
    except codec.CodecError as error:
        raise errors.bad_reply(error) from error
