"""A session of the synchronous client: requests to a network whose states the server keeps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from typing import Any, Protocol

import grpc

from headrace.client import errors
from headrace.client.errors import Error, Target
from headrace.client.outputs import Outputs, decode_reply
from headrace.client.plans import network_plans
from headrace.client.plans.plan import Budget, Plan, seconds
from headrace.client.request import InferRequest
from headrace.client.sessions.standing import Standing, is_not_open


class _Client(Protocol):
    @property
    def endpoint(self) -> Target: ...

    def callable(self, method: str, *, once: bool = False) -> Any: ...
    def run(self, steps: Plan[Outputs]) -> Outputs: ...


class Session:
    """The requests of one sequence: the server passes the network's states from each to the next.

    As a context manager it ends the session when the block ends. A request that the server refuses
    or fails leaves the states as they were; you may repeat it. After Unavailable, Cancelled and
    DeadlineExceeded you cannot know whether the request changed the states. Begin another session
    if that matters.

    Thread-safe; requests run one at a time in the order in which they are made. `_lock` guards the
    standing and the queue. Requests begin, and callbacks run, without the lock.

    Attributes:
        id: the session's id on the server.
    """

    def __init__(self, client: _Client, standing: Standing, timeout_seconds: float) -> None:
        self.id = standing.id
        self._client = client
        self._standing = standing
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._busy = False
        self._line: deque[_SessionRequest] = deque()

    def infer(
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
        options = _options(outputs, priority, performance_counts)
        budget = self._budget(timeout)
        with self._lock:
            data = self._standing.encode(inputs, end=end, options=options)
            if self._busy:
                request = self._add(data, budget, end=end)
            else:
                self._busy, request = True, None
        if request is not None:
            return request.result()
        try:
            plan = network_plans.infer_encoded(data, budget.left_seconds, once=True)
            found = self._client.run(plan)
        except BaseException as error:
            self._ended(error, end=end)
            raise
        else:
            self._ended(None, end=end)
            return found
        finally:
            self._advance()

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
        """Starts a request and returns at once; it is sent when the session's earlier ones have
        finished, and its timeout includes the wait. The arguments are those of `infer`.

        Raises:
            InvalidArgument: an input does not fit the network.
            FailedPrecondition: the session has ended. The result raises all other errors.
        """
        options = _options(outputs, priority, performance_counts)
        budget = self._budget(timeout)
        with self._lock:
            data = self._standing.encode(inputs, end=end, options=options)
            request = self._add(data, budget, end=end)
        self._advance_if_idle()
        return request

    def end(self, *, timeout: float | None = None) -> None:
        """Ends the session after its earlier requests, and frees its states. Idempotent."""
        budget = self._budget(timeout)
        with self._lock:
            if not self._standing.must_end:
                self._standing.closed = True
                return
            request = self._add(self._standing.encode_end(), budget, end=True)
        self._advance_if_idle()
        try:
            request.result()
        except Error as error:
            if not is_not_open(error):
                raise
            self._standing.closed = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Error):  # the server ends it too, when it has been idle for long enough
            self.end()

    # -- inside --

    def _budget(self, timeout: float | None) -> Budget:
        return Budget(self._timeout_seconds if timeout is None else timeout)

    def _add(self, data: bytes, budget: Budget, *, end: bool) -> _SessionRequest:
        """Puts a request at the end of the queue. The caller holds the lock."""

        def ended(error: BaseException | None) -> None:
            self._ended(error, end=end)

        request = _SessionRequest(self._client, data, budget, ended)
        self._line.append(request)
        return request

    def _ended(self, error: BaseException | None, *, end: bool) -> None:
        with self._lock:
            if error is None:
                self._standing.completed(end=end)
            else:
                self._standing.failed(error)

    def _advance_if_idle(self) -> None:
        with self._lock:
            if self._busy:
                return
            self._busy = True
        self._advance()

    def _advance(self) -> None:
        """Sends the first request in the queue. Nobody calls this while a request is in flight."""
        while True:
            with self._lock:
                if not self._line:
                    self._busy = False
                    return
                request = self._line.popleft()
            if request.begin(self._advance):
                return


class _SessionRequest(InferRequest):
    """A request that waits for the previous one. Thread-safe: `concurrent.futures` keeps track of
    whether it waits, runs or has ended.

    Args:
        ended: called with the request's error, or None, before any waiter or callback learns of it.
    """

    def __init__(
        self,
        client: _Client,
        data: bytes,
        budget: Budget,
        ended: Callable[[BaseException | None], object],
    ) -> None:
        self._client = client
        self._data = data
        self._budget = budget
        self._tell = ended
        self._outcome: futures.Future[Outputs] = futures.Future()
        self._call: Any = None
        self._unwanted = False

    def begin(self, then: Callable[[], object]) -> bool:
        """Sends the request; `then` is called when it has ended.

        Returns:
            False if it is not sent because it has already ended.
        """
        if not self._outcome.set_running_or_notify_cancel():
            self._tell(errors.cancelled())
            return False
        left = self._budget.left_seconds
        try:
            if not left:
                raise errors.late(self._client.endpoint)
            infer = self._client.callable("Infer", once=True)
            call = infer.future(self._data, seconds(left, left))
        except Exception as error:  # noqa: BLE001 - as the request's result
            self._fail(error)
            return False

        def answered(call: Any) -> None:
            self._answered(call)
            then()

        self._data, self._call = b"", call
        if self._unwanted:
            call.cancel()
        call.add_done_callback(answered)
        return True

    def wait(self, timeout: float | None = None) -> bool:
        return bool(futures.wait([self._outcome], timeout).done)

    def result(self) -> Outputs:
        try:
            return self._outcome.result()
        except futures.CancelledError:
            raise errors.cancelled() from None

    def cancel(self) -> bool:
        if self._outcome.cancel():
            return True
        self._unwanted = True
        return self._call is not None and bool(self._call.cancel())

    def done(self) -> bool:
        return self._outcome.done()

    def add_done_callback(self, callback: Callable[[InferRequest], object]) -> None:
        self._outcome.add_done_callback(lambda _: callback(self))

    def _answered(self, call: Any) -> None:
        try:
            outputs = decode_reply(call.result())
        except grpc.FutureCancelledError:
            self._fail(errors.cancelled())
        except grpc.RpcError as error:
            self._fail(errors.from_call(error, self._client.endpoint))
        except Exception as error:  # noqa: BLE001 - as the request's result
            self._fail(error)
        else:
            self._tell(None)
            self._outcome.set_result(outputs)

    def _fail(self, error: BaseException) -> None:
        self._tell(error)
        self._outcome.set_exception(error)


def _options(
    outputs: Sequence[str] | None, priority: int, performance_counts: bool
) -> dict[str, Any]:
    return {"outputs": outputs, "priority": priority, "performance_counts": performance_counts}
