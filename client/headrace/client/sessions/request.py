"""A started request of a session of the synchronous client."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from functools import partial
from typing import Any

from headrace.client import errors
from headrace.client.channel.channel import CallFailed
from headrace.client.outputs import Outputs, decode_reply
from headrace.client.plans.plan import Budget, seconds
from headrace.client.request import InferRequest
from headrace.client.shared_memory.call import started
from headrace.client.shared_memory.loan import Loan, Packed


class SessionRequest(InferRequest):
    """A request that waits for the previous one. Thread-safe: `concurrent.futures` keeps track of
    whether it waits, runs or has ended.

    Args:
        ended: called with the request's error, or None, before any waiter or callback learns of it.
    """

    def __init__(
        self,
        client: Any,
        packed: Packed,
        budget: Budget,
        ended: Callable[[BaseException | None], object],
    ) -> None:
        super().__init__(futures.Future[Outputs](), client.endpoint)
        self._client = client
        self._packed = packed
        self._budget = budget
        self._tell = ended
        self._call: Any = None
        self._unwanted = False

    def begin(self, then: Callable[[], object]) -> bool:
        """Sends the request; `then` is called when it has ended.

        Returns:
            False if it is not sent because it has already ended.
        """
        if not self._future.set_running_or_notify_cancel():
            self._forget()
            self._tell(errors.cancelled())
            return False
        left = self._budget.left_seconds
        try:
            if not left:
                raise errors.late(self._client.endpoint)
            limit = seconds(left, left)
            start = partial(self._client.calls.start, "Infer", timeout=limit, once=True)
            call = started(start, self._packed, self._client.endpoint)
        except Exception as error:  # noqa: BLE001 - as the request's result
            self._forget()
            self._fail(error)
            return False

        def answered(call: Any) -> None:
            self._answered(call)
            then()

        self._packed, self._call = b"", call
        if self._unwanted:
            call.cancel()
        call.add_done_callback(answered)
        return True

    def cancel(self) -> bool:
        if super().cancel():
            return True
        self._unwanted = True
        return not self.done() and self._call is not None and bool(self._call.cancel())

    def _forget(self) -> None:
        """Gives back what the request holds, because it is not sent."""
        packed, self._packed = self._packed, b""
        if isinstance(packed, Loan):
            packed.not_sent()

    def _answered(self, call: Any) -> None:
        try:
            found = call.result()
            outputs = found if isinstance(found, Outputs) else decode_reply(found.message)
        except CallFailed as failure:
            self._fail(errors.from_call(failure, self._client.endpoint))
        except Exception as error:  # noqa: BLE001 - as the request's result
            self._fail(error)
        else:
            self._tell(None)
            self._future.set_result(outputs)

    def _fail(self, error: BaseException) -> None:
        self._tell(error)
        self._future.set_exception(error)
