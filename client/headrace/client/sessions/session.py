"""A session of the synchronous client: requests to a network whose states the server keeps."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from headrace.client.conversation import Conversation
from headrace.client.errors import Error
from headrace.client.forks import tell_of_forks
from headrace.client.infer_many import InferMany
from headrace.client.outputs import Outputs
from headrace.client.plans import infer_plans
from headrace.client.plans.plan import Budget
from headrace.client.request import InferRequest
from headrace.client.sessions.progress import SessionProgress, is_not_open
from headrace.client.sessions.request import SessionRequest
from headrace.client.sessions.shared import AnySession
from headrace.client.shared_memory.loan import Packed
from headrace.client.shared_memory.sharing import Sharing


class Session(AnySession[Outputs, InferRequest, InferMany]):
    """The requests of one sequence: the server passes the network's states from each to the next.

    As a context manager it ends the session when the block ends. A request that the server refuses
    or fails leaves the states as they were; you may repeat it. After Unavailable, Cancelled and
    DeadlineExceeded you cannot know whether the request changed the states. Begin another session
    if that matters.

    Thread-safe; requests run one at a time in the order in which they are made. `_lock` guards the
    progress and the queue. Requests begin, and callbacks run, without the lock.

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
        self._many: weakref.ref[InferMany] | None = None
        self._lock = threading.Lock()
        self._busy = False
        self._line: deque[SessionRequest] = deque()
        tell_of_forks(self)

    def inherit(self) -> None:
        """In a child process: a session that has begun is the parent's, who goes on with it."""
        self._lock = threading.Lock()
        self._progress.closed |= self._progress.must_end

    def end(self, *, timeout: float | None = None) -> None:
        """Ends the session after its earlier requests, and frees its states. Idempotent.

        It closes an `infer_many` that runs.
        """
        budget = self._budget(timeout)
        many = None if self._many is None else self._many()
        if many is not None:
            many.close()
        with self._lock:
            if not self._progress.must_end:
                self._progress.closed = True
                return
            request = self._add(self._progress.encode_end(), budget, end=True)
        self._advance_if_idle()
        try:
            request.result()
        except Error as error:
            if not is_not_open(error):
                raise
            self._progress.closed = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Error):  # the server ends it too, when it has been idle for long enough
            self.end()

    # -- inside --

    def _infer(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], budget: Budget, *, end: bool
    ) -> Outputs:
        with self._lock:
            packed = self._pack(inputs, options, end=end)
            if self._busy:
                request = self._add(packed, budget, end=end)
            else:
                self._busy, request = True, None
        if request is not None:
            return request.result()
        try:
            plan = infer_plans.infer_packed(packed, budget, once=True)
            found: Outputs = self._client.run(plan)
        except BaseException as error:
            self._ended(error, end=end)
            raise
        else:
            self._ended(None, end=end)
            return found
        finally:
            self._advance()

    def _start(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], budget: Budget, *, end: bool
    ) -> InferRequest:
        with self._lock:
            request = self._add(self._pack(inputs, options, end=end), budget, end=end)
        self._advance_if_idle()
        return request

    def _many_of(self, conversation: Conversation, inputs: Any) -> InferMany:
        with self._lock:
            self._progress.begin_stream()
        many = InferMany(conversation, inputs)
        self._many = weakref.ref(many)
        return many

    def _add(self, packed: Packed, budget: Budget, *, end: bool) -> SessionRequest:
        """Puts a request at the end of the queue. The caller holds the lock."""

        def ended(error: BaseException | None) -> None:
            self._ended(error, end=end)

        request = SessionRequest(self._client, packed, budget, ended)
        self._line.append(request)
        return request

    def _ended(self, error: BaseException | None, *, end: bool) -> None:
        with self._lock:
            if error is None:
                self._progress.completed(end=end)
            else:
                self._progress.failed(error)

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
