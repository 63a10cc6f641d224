"""The plans that send one request: in shared memory or in a message.

`timeout_seconds` covers the whole plan.
"""

from __future__ import annotations

from headrace.client.channel.channel import Request
from headrace.client.errors import Error, ResourceExhausted
from headrace.client.outputs import Outputs, decode_reply
from headrace.client.plans.plan import Budget, Call, Pause, Plan
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


def infer_packed(packed: Packed, timeout_seconds: float, *, once: bool = False) -> Plan[Outputs]:
    """Sends a request that `pack` has made; see `infer`. `once` is as in `Call`."""
    if isinstance(packed, Loan):
        return (yield from infer_lent(packed, timeout_seconds, once=once))
    return (yield from infer_encoded(packed, timeout_seconds, once=once))


def infer_encoded(
    data: Request, timeout_seconds: float, *, retry_when_full: bool = False, once: bool = False
) -> Plan[Outputs]:
    """Sends a serialised request; see `infer`. `once` is as in `Call`."""
    budget = Budget(timeout_seconds)
    return decode_reply((yield from _infer(data, budget, retry_when_full, once=once)))


def infer_lent(
    loan: Loan, timeout_seconds: float, *, retry_when_full: bool = False, once: bool = False
) -> Plan[Outputs]:
    """Sends a request whose tensors lie in shared memory. If the server cannot use the memory, the
    request is sent again in a message. See `infer`."""
    budget = Budget(timeout_seconds)
    try:
        return loan.read((yield from _infer(loan.data, budget, retry_when_full, once=once)))
    except Error as error:
        again = loan.failed(error)
        if again is None:
            raise
    finally:
        loan.give_up()
    data = serialize(*again)
    return loan.read_message((yield from _infer(data, budget, retry_when_full, once=once)))


def _infer(
    data: Request, budget: Budget, retry_when_full: bool, *, once: bool = False
) -> Plan[bytes]:
    while True:
        try:
            reply: bytes = yield Call("Infer", data, budget.left_seconds, once)
            return reply
        except ResourceExhausted as error:
            delay = error.details.retry_delay_seconds
            if not retry_when_full or delay is None or delay >= budget.left_seconds:
                raise
        yield Pause(delay)
