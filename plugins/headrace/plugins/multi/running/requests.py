"""A request on its way through a pool of devices, and the instructions that a schedule gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from headrace.plugins.multi.running.availability import ScheduledDevice
from headrace.runtime.execution.fair_queue import Entry
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Value
from headrace.runtime.virtual.part_job import PartJob

T = TypeVar("T")


class PooledRequest(Generic[T]):
    """A request from its arrival to its answer.

    Attributes:
        item: whatever the owner of the schedule keeps with the request.
        device: the device that runs it; None while it waits, and at the end.
        outages: the device's number of outages when the request started there.
        error: the error of the device where it failed; None while it runs for the first time.
        stranded_since: the time since which no device is left to run it again; infinite while there
            is one.
    """

    __slots__ = (
        "device",
        "entry",
        "error",
        "failed_run",
        "item",
        "outages",
        "priority",
        "stranded_since",
    )

    def __init__(self, item: T, priority: int = 0) -> None:
        self.item = item
        self.priority = priority
        self.entry: Entry[PooledRequest[T]] | None = None
        self.device: ScheduledDevice | None = None
        self.outages = 0
        self.error: BaseException | None = None
        self.failed_run: FailedRun | None = None
        self.stranded_since = math.inf


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


@dataclass(frozen=True, slots=True)
class RunRequest(Generic[T]):
    """An instruction: run the request on the device, then call `completed` or `failed`."""

    request: PooledRequest[T]
    device: str


@dataclass(frozen=True, slots=True)
class AnswerRequest(Generic[T]):
    """An instruction: answer the request with the error, or with the device's outputs if there is
    no error."""

    request: PooledRequest[T]
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class ReportOutage:
    """An instruction: report that a device was taken out for this reason. Without a reason, report
    that it was put back."""

    device: str
    reason: str = ""


Instruction: TypeAlias = RunRequest[T] | AnswerRequest[T] | ReportOutage


class PoolRequest(PooledRequest[Job]):
    """A job, and its part on the device that has it.

    Args:
        on_cancel: called if the job is cancelled after `listen`.
        on_end: called with the part that has ended, on any thread.

    Attributes:
        outputs: the device's outputs, until the request is answered.
    """

    __slots__ = ("_listens", "_on_cancel", "_on_end", "_part", "outputs")

    def __init__(
        self,
        job: Job,
        on_cancel: Callable[[PoolRequest], object],
        on_end: Callable[[PoolRequest, Job], None],
    ) -> None:
        super().__init__(job, job.priority)
        self._on_cancel = on_cancel
        self._on_end = on_end
        self._part: Job | None = None  # the latest
        self._listens = False
        self.outputs: dict[str, Value] = {}

    def listen(self) -> None:
        """Calls `on_cancel` from now on if the job is cancelled. A device that runs the request
        learns of it from the part."""
        if self._listens:
            return
        self._listens = True
        self.item.token.attach(self._cancelled)
        if self.item.outcome is not None:  # on another thread, which may not have seen `_listens`
            self.item.token.detach(self._cancelled)

    def part(self, *, inline: bool) -> PartJob:
        """A part for a device to run. It may be cancelled already."""
        job = self.item
        ended = partial(self._on_end, self)
        part = PartJob(job, job.inputs, ended, job.output_names, job.token.child(), inline=inline)
        self._part = part
        return part

    def settle(self, error: BaseException | None) -> None:
        """Gives the job its outcome."""
        job, part = self.item, self._part
        if part is not None:
            job.prepared, job.inferred, job.layers = part.prepared, part.inferred, part.layers
        if error is None:
            job.outputs = self.outputs
            job.complete()
        else:
            job.fail(error)
        self._part, self.outputs = None, {}
        if self._listens:
            job.token.detach(self._cancelled)

    def _cancelled(self) -> None:
        self._on_cancel(self)
