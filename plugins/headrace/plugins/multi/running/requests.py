"""A request on its way through a pool of devices, and the instructions that a schedule gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from headrace.plugins.multi.running.availability import ScheduledDevice
from headrace.runtime.execution.fair_queue import Entry
from headrace.runtime.execution.job import Job

T = TypeVar("T")


class PooledRequest(Generic[T]):
    """A request from its arrival to its answer.

    Attributes:
        item: whatever the owner of the schedule keeps with the request.
        entry: its place in the queue, if it has waited there.
        device: the device that runs it; None while it waits, and at the end.
        outages: the device's number of outages when the request started there.
        error: the error of the device where it failed; None while it runs for the first time.
        stranded_since: the time since which no device is left to run it again; infinite while there
            is one.
    """

    # Defaults of the class: most requests run at once, and every one would pay for setting them.
    entry: Entry[PooledRequest[T]] | None = None
    device: ScheduledDevice | None = None
    outages = 0
    error: BaseException | None = None
    failed_run: FailedRun | None = None
    stranded_since = math.inf

    def __init__(self, item: T, priority: int = 0) -> None:
        self.item, self.priority = item, priority


@dataclass(frozen=True, slots=True)
class FailedRun:
    """The run in which a request failed.

    Attributes:
        outages: the device's number of outages if it may have been at fault, otherwise None.
    """

    device: ScheduledDevice
    outages: int | None

    @property
    def is_suspect(self) -> bool:
        """Whether the device may have been at fault, and has not been taken out since."""
        return self.outages == self.device.outages


class RunRequest(NamedTuple, Generic[T]):
    """An instruction: run the request on the device, then call `completed` or `failed`."""

    request: PooledRequest[T]
    device: str


@dataclass(frozen=True, slots=True)
class AnswerRequest(Generic[T]):
    """An instruction: answer the request with the error."""

    request: PooledRequest[T]
    error: BaseException


@dataclass(frozen=True, slots=True)
class ReportOutage:
    """An instruction: report that a device was taken out for this reason. Without a reason, report
    that it was put back."""

    device: str
    reason: str = ""


Instruction: TypeAlias = RunRequest[T] | AnswerRequest[T] | ReportOutage


class PoolRequest(PooledRequest[Job]):
    """The job of a caller, which a device runs itself. The device sees the times and the span of
    its own run; the caller sees those of the request."""

    _started = 0.0
    _on_cancel: Callable[[], object] | None = None

    def __init__(self, job: Job) -> None:
        super().__init__(job, job.priority)
        self._queued, self._span = job.queued, job.span

    def begin_run(self, *, inline: bool) -> None:
        """The job goes to a device."""
        job = self.item
        job.may_run_inline, job.started = inline, 0.0
        if self._span is not None:
            job.span = self._span.child("part")

    def end_run(self) -> None:
        """The device has settled the job."""
        job = self.item
        self._started = self._started or job.started
        job.queued, job.started, job.span = self._queued, self._started, self._span

    def listen(self, on_cancel: Callable[[PoolRequest], object]) -> None:
        """Has `on_cancel` called from now on if the job is cancelled. Call it before another thread
        can end the job."""
        if self._on_cancel is None:
            self._on_cancel = partial(on_cancel, self)
            self.item.token.attach(self._on_cancel)

    def stop_listening(self) -> None:
        """The job has its outcome."""
        if self._on_cancel is not None:
            self.item.token.detach(self._on_cancel)
            self._on_cancel = None  # it refers to the request
