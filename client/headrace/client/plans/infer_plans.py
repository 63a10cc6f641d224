"""The plan that sends one request: in shared memory or in a message."""

from __future__ import annotations

from headrace.client.channel.channel import Request
from headrace.client.errors import Error, ResourceExhausted
from headrace.client.outputs import Outputs, decode_reply
from headrace.client.plans.plan import Budget, CallMethod, Pause, Plan
from headrace.client.shared_memory.loan import Loan, Packed
from headrace.client.shared_memory.sharing import Sharing
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import codec
from headrace.wire.message import serialize


def pack(
    sharing: Sharing | None, request: pb.InferRequest, attachments: list[codec.Buffer]
) -> Packed:
    """Puts a request into shared memory. Serialises it instead if it is small, or if no segment is
    free. The arrays may change afterwards."""
    loan = None if sharing is None else sharing.lend(request, attachments)
    return serialize(request, attachments) if loan is None else loan


def infer_packed(
    packed: Loan | Request, budget: Budget, *, retry_when_full: bool = False, once: bool = False
) -> Plan[Outputs]:
    """Sends a request that `pack` has made, or one that is serialised. If the server cannot use the
    shared memory, the request is sent again in a message. See `infer`.

    Args:
        once: as in `CallMethod`.
    """
    loan = packed if isinstance(packed, Loan) else None
    data = loan.data if loan is not None else packed
    try:
        while True:
            try:
                reply: bytes = yield CallMethod("Infer", data, budget.left_seconds, once)
            except ResourceExhausted as error:
                delay = error.details.retry_delay_seconds
                if retry_when_full and delay is not None and delay < budget.left_seconds:
                    yield Pause(delay)
                    continue
                raise
            return decode_reply(reply) if loan is None else loan.read(reply)
    except Error as error:
        again = None if loan is None else loan.failed(error)
        if loan is None or again is None:
            raise
    finally:
        if loan is not None:
            loan.give_up()
    outputs = yield from infer_packed(
        serialize(*again), budget, retry_when_full=retry_when_full, once=once
    )
    loan.learn(outputs)
    return outputs
