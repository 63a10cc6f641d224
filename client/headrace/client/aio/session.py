"""A session of the asyncio client: requests to a network whose states the server keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from headrace.client import errors
from headrace.client.aio.infer_many import InferMany
from headrace.client.aio.request import InferRequest
from headrace.client.conversation import Conversation
from headrace.client.errors import Error
from headrace.client.outputs import Outputs
from headrace.client.plans import infer_plans
from headrace.client.plans.plan import Budget
from headrace.client.sessions.progress import SessionProgress, is_not_open
from headrace.client.sessions.shared import AnySession
from headrace.client.shared_memory.loan import Loan, Packed
from headrace.client.shared_memory.sharing import Sharing


class Session(AnySession[Coroutine[Any, Any, Outputs], InferRequest, InferMany]):
    """The requests of one sequence: the server passes the network's states from each to the next.

    As a context manager it ends the session when the block ends. Requests run one at a time in the
    order in which they are made. Errors are the same as with `headrace.client.Session`.

    Attributes:
        id: the session's id on the server.
    """

    def __init__(
        self,
        client: Any,
        progress: SessionProgress,
        timeout_seconds: float,
        sharing: Sharing | None,
    ) -> None:
        super().__init__(client, progress, timeout_seconds, sharing)
        self._many: InferMany | None = None
        self._last: asyncio.Future[None] | None = None  # done when the last request is

    async def end(self, *, timeout: float | None = None) -> None:
        """Ends the session after its earlier requests, and frees its states. Idempotent.

        It closes an `infer_many` that runs.
        """
        budget = self._budget(timeout)
        if self._many is not None:
            await self._many.aclose()
        if not self._progress.must_end:
            self._progress.closed = True
            return
        turn = _Turn(self, self._progress.encode_end(), end=True)
        try:
            await self._send(turn, budget)
        except Error as error:
            if not is_not_open(error):
                raise
            self._progress.closed = True

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(Error):  # the server ends it too, when it has been idle for long enough
            await self.end()

    # -- inside --

    async def _infer(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], budget: Budget, *, end: bool
    ) -> Outputs:
        packed = self._pack(inputs, options, end=end)
        return await self._send(_Turn(self, packed, end=end), budget)

    def _start(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], budget: Budget, *, end: bool
    ) -> InferRequest:
        turn = _Turn(self, self._pack(inputs, options, end=end), end=end)
        task = asyncio.get_running_loop().create_task(turn.take(budget))
        # Not at the end of the task, which may be cancelled before it begins.
        task.add_done_callback(lambda done: turn.ended(_error_of(done)))
        return InferRequest(task)

    def _many_of(self, conversation: Conversation, inputs: Any) -> InferMany:
        self._progress.begin_stream()
        self._many = InferMany(conversation, inputs)  # nobody else may keep it, and its tasks go on
        return self._many

    @staticmethod
    async def _send(turn: _Turn, budget: Budget) -> Outputs:
        error: BaseException | None = None
        try:
            return await turn.take(budget)
        except BaseException as failure:
            error = failure
            raise
        finally:
            turn.ended(error)


class _Turn:
    """A request's place in its session's queue. It has the place from the moment it is made."""

    def __init__(self, session: Session, packed: Packed, *, end: bool) -> None:
        self._session = session
        self._packed = packed
        self._end = end
        self._before = session._last
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session._last = self._over

    async def take(self, budget: Budget) -> Outputs:
        """Sends the request when the previous one has ended."""
        if self._before is not None and not self._before.done():
            await asyncio.wait({self._before})
        client = self._session._client
        if not budget.left_seconds:
            raise errors.late(client.endpoint)
        steps = infer_plans.infer_packed(self._packed, budget, once=True)
        found: Outputs = await client.run(steps)
        return found

    def ended(self, error: BaseException | None) -> None:
        """Ends the request's turn. If it was cancelled while it waited, the next request waits for
        the previous one instead."""
        packed, self._packed = self._packed, b""
        if isinstance(packed, Loan):
            packed.not_sent()  # or it has ended
        if error is None:
            self._session._progress.completed(end=self._end)
        else:
            self._session._progress.failed(error)
        before, self._before = self._before, None
        if before is None or before.done():
            self._over.set_result(None)
        else:
            before.add_done_callback(lambda _: self._over.set_result(None))


def _error_of(task: asyncio.Task[Outputs]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
