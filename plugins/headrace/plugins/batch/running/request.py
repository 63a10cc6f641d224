"""A request that goes into a batch, and the batch that goes to the device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence

from headrace.plugins.batch.running.scheduler import QueuedRequest
from headrace.runtime.errors import HeadraceError
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, Ticket
from headrace.runtime.execution.trace import Span
from headrace.runtime.network.values import Value


class BatchMember(QueuedRequest):
    """A request that may run with others. The collector's lock guards all attributes that change.

    Attributes:
        run: the batch that it is in. None while it waits.
        left: it has its outcome, or gets it from the thread that is joining the batch.
    """

    __slots__ = ("_on_cancel", "job", "left", "run")

    def __init__(
        self, job: Job, group: Hashable, rows: int, on_cancel: Callable[[BatchMember], None]
    ) -> None:
        deadline = math.inf if job.deadline is None else job.deadline
        super().__init__(group, rows, job.priority, deadline)
        self.job = job
        self.run: BatchRun | None = None
        self.left = False
        self._on_cancel = on_cancel

    def listen(self) -> None:
        """Tells the collector at once when the request is cancelled or expires. The request may
        already have ended on another thread."""
        self.job.token.attach(self._cancelled)
        if self.job.outcome is not None:
            self.stop_listening()

    def stop_listening(self) -> None:
        self.job.token.detach(self._cancelled)

    def _cancelled(self) -> None:
        self._on_cancel(self)


class BatchRun:
    """Members that run together, or one member alone. The collector's lock guards all attributes
    that change.

    Attributes:
        token: the batch's token. It is cancelled only when no member is left.
        joined: the members' inputs have been copied, and are not read any more.
        present: the number of members that still wait for the result.
    """

    __slots__ = ("joined", "members", "present", "token")

    def __init__(self, members: Sequence[BatchMember]) -> None:
        self.members = tuple(members)
        self.token = CancelToken()
        self.joined = False
        self.present = len(self.members)
        for member in self.members:
            member.run = self

    @property
    def alone(self) -> bool:
        return len(self.members) == 1


class BatchJob(Job):
    """The job that the device runs for its members' requests. Its start time is also theirs.

    It has no deadline, because each member has its own. It carries the ticket of the network that
    made it: all members were admitted there, or came with a ticket.

    Args:
        members: the members whose rows the job has.

    Attributes:
        rows: the number of rows of each member.
    """

    __slots__ = ("_started", "members", "rows", "run")

    def __init__(
        self,
        run: BatchRun,
        members: Sequence[BatchMember],
        inputs: Mapping[str, Value],
        done: Callable[[Job], None],
        ticket: Ticket,
        *,
        inline: bool,
    ) -> None:
        self.run = run
        self.members = tuple(members)
        self.rows = [member.rows for member in members]
        jobs = [member.job for member in members]
        super().__init__(
            inputs,
            done,
            output_names=jobs[0].output_names,
            priority=max(job.priority for job in jobs),
            token=run.token,
            ticket=ticket,
            profile=any(job.profile for job in jobs),
            may_run_inline=inline,
            trace=jobs[0].trace,
            span=_span(jobs, sum(self.rows)),
        )

    @property
    def started(self) -> float:
        return self._started

    @started.setter
    def started(self, seconds: float) -> None:
        self._started = seconds
        if seconds:
            for member in self.members:
                member.job.started = seconds

    def tell_times(self) -> None:
        """Gives the members the times at which the stages ended."""
        for member in self.members:
            member.job.prepared, member.job.inferred = self.prepared, self.inferred


def _span(jobs: Sequence[Job], rows: int) -> Span | None:
    """The span of a batch: a part of its first traced request, with links to and from all of them.
    The requests waited until now."""
    spans = [job.span for job in jobs if job.span is not None]
    batch = spans[0].child("batch") if spans else None
    if batch is None:
        return None
    batch.facts["headrace.batch_size"] = rows
    batch.facts["headrace.batch_requests"] = len(jobs)
    now = time.monotonic()
    for job in jobs:
        if job.span is not None:
            job.span.add("queue BATCH", job.queued, now)
            job.span.link(batch)
            batch.link(job.span)
    return batch


def reason(job: Job) -> HeadraceError:
    """The error that a cancelled request was cancelled with."""
    assert job.token.error is not None
    return job.token.error
