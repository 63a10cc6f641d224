"""A session of the asyncio client: requests to a network whose states the server keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from headrace.client import errors
from headrace.client.aio.infer_many import InferMany
from headrace.client.aio.request import InferRequest
from headrace.client.conversation import Conversation, Place
from headrace.client.errors import Error
from headrace.client.outputs import Outputs
from headrace.client.plans import infer_plans
from headrace.client.plans.plan import Budget, Plan
from headrace.client.sessions.standing import Standing, is_not_open
from headrace.client.shared_memory.loan import Loan, Packed
from headrace.client.shared_memory.sharing import Sharing
from headrace.client.transport import TaskCalls


class _Client(Protocol):
    @property
    def endpoint(self) -> object: ...

    @property
    def calls(self) -> TaskCalls: ...
    async def run(self, steps: Plan[Outputs]) -> Outputs: ...


class Session:
    """The requests of one sequence: the server passes the network's states from each to the next.

    As a context manager it ends the session when the block ends. Requests run one at a time in the
    order in which they are made. Errors are the same as with `headrace.client.Session`.

    Attributes:
        id: the session's id on the server.
    """

    def __init__(
        self, client: _Client, standing: Standing, timeout_seconds: float, sharing: Sharing | None
    ) -> None:
        self.id = standing.id
        self._client = client
        self._standing = standing
        self._sharing = sharing
        self._many: InferMany | None = None
        self._timeout_seconds = timeout_seconds
        self._last: asyncio.Future[None] | None = None  # done when the last request is

    async def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Sequence[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        performance_counts: bool = False,
        end: bool = False,
    ) -> Outputs:
        """Runs the network once, after the session's earlier requests.

        Args:
            inputs, outputs, priority, timeout, performance_counts: as for `Network.infer`, but
                without the states.
            end: this is the session's last request.

        Raises:
            FailedPrecondition: the session has ended, perhaps because it was idle for too long.
            As `Network.infer`.
        """
        budget = self._budget(timeout)
        packed = self._pack(inputs, outputs, priority, performance_counts, end)
        return await self._send(_Turn(self, packed, end=end), budget)

    def start_async(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Sequence[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        performance_counts: bool = False,
        end: bool = False,
    ) -> InferRequest:
        """Starts a request; it is sent when the session's earlier ones have finished, and its
        timeout includes the wait. Do not await this method. The arguments are those of `infer`.

        Raises:
            InvalidArgument: an input does not fit the network.
            FailedPrecondition: the session has ended. The result raises all other errors.
        """
        budget = self._budget(timeout)
        packed = self._pack(inputs, outputs, priority, performance_counts, end)
        turn = _Turn(self, packed, end=end)
        task = asyncio.get_running_loop().create_task(turn.take(budget))
        # Not at the end of the task, which may be cancelled before it begins.
        task.add_done_callback(lambda done: turn.ended(_error_of(done)))
        return InferRequest(task)

    def infer_many(
        self,
        inputs: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        in_flight: int = 32,
        outputs: Sequence[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        performance_counts: bool = False,
    ) -> InferMany:
        """Runs the network once for each of many inputs in their order, over one stream.

        Until the iteration has ended or is closed, the session takes no other request.

        Args:
            in_flight: how many requests may be unanswered at a time.
            inputs, outputs, priority, timeout, performance_counts: as for `Network.infer_many`, but
                without the states.

        Returns:
            An asynchronous iterator over (index, outputs or error), in order. After a request that
            fails, the next ones go on with the states of the last one that completed.

        Raises:
            FailedPrecondition: the session has ended, or has requests in flight.
        """
        conversation = Conversation(
            self._standing.encode_on_stream,
            Place(self._client),
            sharing=self._sharing,
            standing=self._standing,
            in_flight=in_flight,
            outputs=outputs,
            priority=priority,
            timeout=timeout,
            performance_counts=performance_counts,
        )
        self._standing.begin_stream()
        many = InferMany(conversation, inputs)
        self._many = many  # nobody else may keep it, and its tasks go on
        return many

    async def end(self, *, timeout: float | None = None) -> None:
        """Ends the session after its earlier requests, and frees its states. Idempotent.

        It closes an `infer_many` that runs.
        """
        budget = self._budget(timeout)
        if self._many is not None:
            await self._many.aclose()
        if not self._standing.must_end:
            self._standing.closed = True
            return
        turn = _Turn(self, self._standing.encode_end(), end=True)
        try:
            await self._send(turn, budget)
        except Error as error:
            if not is_not_open(error):
                raise
            self._standing.closed = True

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(Error):  # the server ends it too, when it has been idle for long enough
            await self.end()

    # -- inside --

    def _pack(
        self,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None,
        priority: int,
        performance_counts: bool,
        end: bool,
    ) -> Packed:
        """A request, ready to be sent."""
        options = {
            "outputs": outputs,
            "priority": priority,
            "performance_counts": performance_counts,
        }
        request = self._standing.encode(inputs, end=end, options=options)
        return infer_plans.pack(self._sharing, *request)

    def _budget(self, timeout: float | None) -> Budget:
        return Budget(self._timeout_seconds if timeout is None else timeout)

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
        return await client.run(steps)

    def ended(self, error: BaseException | None) -> None:
        """Ends the request's turn. If it was cancelled while it waited, the next request waits for
        the previous one instead."""
        packed, self._packed = self._packed, b""
        if isinstance(packed, Loan):
            packed.not_sent()  # or it has ended
        if error is None:
            self._session._standing.completed(end=self._end)
        else:
            self._session._standing.failed(error)
        before, self._before = self._before, None
        if before is None or before.done():
            self._over.set_result(None)
        else:
            before.add_done_callback(lambda _: self._over.set_result(None))


def _error_of(task: asyncio.Task[Outputs]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
