"""A started request whose tensors lie in shared memory, of the synchronous client."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headrace.client import errors
from headrace.client.channel.channel import CallFailed
from headrace.client.errors import Error
from headrace.client.outputs import Outputs
from headrace.client.request import OutcomeFuture
from headrace.client.shared_memory.loan import Loan, Packed
from headrace.wire.message import serialize


def started(start: Callable[[bytes], Any], packed: Packed, target: object) -> Any:
    """Starts a call. Returns a `LentCall` if the tensors are in shared memory."""
    return LentCall(start, packed, target) if isinstance(packed, Loan) else start(packed)


class LentCall(OutcomeFuture):
    """A request in shared memory. Its result is the outputs. If the server cannot use the memory,
    the request is sent again in a message. Thread-safe.

    The thread that reads the reply copies the outputs out of the memory at once. So the segment is
    free again, even if nobody asks for the outputs.
    """

    def __init__(self, start: Callable[[bytes], Any], loan: Loan, target: object) -> None:
        self._start = start
        self._target = target
        self._loan = loan
        self._outcome: Future[Outputs] = Future()
        self._cancelled = False
        self._call = start(loan.data)
        self._call.add_done_callback(self._answered)

    def cancel(self) -> bool:
        self._cancelled = True
        return bool(self._call.cancel())

    def _answered(self, call: Any) -> None:
        try:
            self._outcome.set_result(self._loan.read(self._reply(call)))
        except Error as error:
            again = self._loan.failed(error)
            if again is None or self._cancelled:
                self._outcome.set_exception(error)
            else:
                self._send_again(serialize(*again))

    def _send_again(self, data: bytes) -> None:
        try:
            self._call = call = self._start(data)
        except Error as error:  # the client has been closed meanwhile
            self._outcome.set_exception(error)
            return
        if self._cancelled:  # while there was no call to cancel
            call.cancel()
        call.add_done_callback(self._answered_again)

    def _answered_again(self, call: Any) -> None:
        try:
            self._outcome.set_result(self._loan.read_message(self._reply(call)))
        except Error as error:
            self._outcome.set_exception(error)

    def _reply(self, call: Any) -> bytes:
        """The call's reply.

        Raises:
            Error: the error that ended the call.
        """
        try:
            reply: bytes = call.result().message
        except CallFailed as failure:
            raise errors.from_call(failure, self._target) from None
        return reply
