"""How many requests of a pipeline run at once. The others wait before their first step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from headrace.runtime.execution.fair_queue import Entry, FairQueue, Flow
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.trampoline import Trampoline


class WaitingRequest:
    """A request that a window lets in.

    Args:
        begin: begins the request. It does not raise.

    Attributes:
        entry: its place in the queue; None if it does not wait.
    """

    __slots__ = ("begin", "entry", "job")

    def __init__(self, job: Job, begin: Callable[[], object]) -> None:
        self.job = job
        self.begin = begin
        self.entry: Entry[WaitingRequest] | None = None


class Window:
    """Thread-safe: `_lock` guards the queue. No request begins or ends under it.

    A request that waits keeps nothing but its inputs. Its cancel or its deadline ends it at once.

    Args:
        limit: how many requests run at once.
    """

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._queue: FairQueue[WaitingRequest] = FairQueue()
        self._flow: Flow[WaitingRequest] = Flow(limit)
        self._trampoline: Trampoline[WaitingRequest] = Trampoline()

    @property
    def limit(self) -> int:
        return self._flow.limit

    @property
    def waiting(self) -> int:
        return self._queue.length

    @property
    def running(self) -> int:
        return self._flow.running

    def resize(self, limit: int) -> None:
        """Lets so many requests run at once from now on."""
        with self._lock:
            self._flow.limit = limit
        self._go_on()

    def enter(self, request: WaitingRequest) -> None:
        """Begins the request, now or when there is room."""
        job, flow = request.job, self._flow
        with self._lock:
            at_once = flow.running < flow.limit and not flow.waiting
            if at_once:
                flow.running += 1
            else:
                request.entry = self._queue.push(flow, request, job.priority)
        if at_once:
            job.follow(self._left)
            request.begin()
            return
        leave = partial(self._give_up, request)
        job.observe(partial(_detach, leave))
        job.token.attach(leave)  # calls it if the token is cancelled already
        if job.outcome is not None:  # meanwhile, on another thread
            job.token.detach(leave)

    def _give_up(self, request: WaitingRequest) -> None:
        """Ends a request that is cancelled while it waits."""
        with self._lock:
            assert request.entry is not None
            waited = self._queue.remove(request.entry)
        if waited:
            error = request.job.token.error
            assert error is not None
            request.job.fail(error)

    def _left(self, _: Job) -> None:
        """Takes note of the end of a request that ran."""
        with self._lock:
            self._queue.finished(self._flow)
        self._go_on()

    def _go_on(self) -> None:
        ready = []
        with self._lock:
            while (popped := self._queue.pop()) is not None:
                ready.append(popped[1])
        self._trampoline(self._begin, ready)

    def _begin(self, request: WaitingRequest, _: bool) -> None:
        request.job.may_run_inline = False  # this thread has ended another request
        request.job.follow(self._left)
        request.begin()


def _detach(hook: Callable[[], object], job: Job) -> None:
    job.token.detach(hook)
