"""A session of the asyncio client: requests to a network whose states the server keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from headrace.client import errors
from headrace.client.aio.request import InferRequest
from headrace.client.errors import Error, Target
from headrace.client.outputs import Outputs
from headrace.client.plans import network_plans
from headrace.client.plans.plan import Budget, Plan
from headrace.client.sessions.standing import Standing, is_not_open


class _Client(Protocol):
    @property
    def endpoint(self) -> Target: ...

    async def run(self, steps: Plan[Outputs]) -> Outputs: ...


class Session:
    """The requests of one sequence: the server passes the network's states from each to the next.

    As a context manager it ends the session when the block ends. Requests run one at a time in the
    order in which they are made. Errors are the same as with `headrace.client.Session`.

    Attributes:
        id: the session's id on the server.
    """

    def __init__(self, client: _Client, standing: Standing, timeout_seconds: float) -> None:
        self.id = standing.id
        self._client = client
        self._standing = standing
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
        data = self._encode(inputs, outputs, priority, performance_counts, end)
        return await self._send(_Turn(self, end=end), data, budget)

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
        data = self._encode(inputs, outputs, priority, performance_counts, end)
        turn = _Turn(self, end=end)
        task = asyncio.get_running_loop().create_task(turn.take(data, budget))
        # Not at the end of the task, which may be cancelled before it begins.
        task.add_done_callback(lambda done: turn.ended(_error_of(done)))
        return InferRequest(task)

    async def end(self, *, timeout: float | None = None) -> None:
        """Ends the session after its earlier requests, and frees its states. Idempotent."""
        budget = self._budget(timeout)
        if not self._standing.must_end:
            self._standing.closed = True
            return
        data = self._standing.encode_end()
        try:
            await self._send(_Turn(self, end=True), data, budget)
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

    def _encode(
        self,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None,
        priority: int,
        performance_counts: bool,
        end: bool,
    ) -> bytes:
        options = {
            "outputs": outputs,
            "priority": priority,
            "performance_counts": performance_counts,
        }
        return self._standing.encode(inputs, end=end, options=options)

    def _budget(self, timeout: float | None) -> Budget:
        return Budget(self._timeout_seconds if timeout is None else timeout)

    @staticmethod
    async def _send(turn: _Turn, data: bytes, budget: Budget) -> Outputs:
        error: BaseException | None = None
        try:
            return await turn.take(data, budget)
        except BaseException as failure:
            error = failure
            raise
        finally:
            turn.ended(error)


class _Turn:
    """A request's place in its session's queue. It has the place from the moment it is made."""

    def __init__(self, session: Session, *, end: bool) -> None:
        self._session = session
        self._end = end
        self._before = session._last
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session._last = self._over

    async def take(self, data: bytes, budget: Budget) -> Outputs:
        """Sends the request when the previous one has ended."""
        if self._before is not None and not self._before.done():
            await asyncio.wait({self._before})
        client = self._session._client
        if not budget.left_seconds:
            raise errors.late(client.endpoint)
        return await client.run(network_plans.infer_encoded(data, budget.left_seconds, once=True))

    def ended(self, error: BaseException | None) -> None:
        """Ends the request's turn. If it was cancelled while it waited, the next request waits for
        the previous one instead."""
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
