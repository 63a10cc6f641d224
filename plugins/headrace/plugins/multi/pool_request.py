"""A job on its way through a pool, and its part on the device that has it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headrace.plugins.multi.instructions import Request
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Value
from headrace.runtime.virtual.part_job import PartJob


class PoolRequest(Request[Job]):
    """
    Args:
        on_cancel: called where the job is cancelled while it listens.
        on_end: called with the part that has ended, on any thread.

    Attributes:
        outputs: what the device gave, until the request is answered.
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
        """Hears from now on that the job is cancelled. A device that has it is told by its part."""
        if self._listens:
            return
        self._listens = True
        self.item.token.attach(self._cancelled)
        if self.item.outcome is not None:  # on another thread, which may not have seen `_listens`
            self.item.token.detach(self._cancelled)

    def part(self, *, inline: bool) -> PartJob:
        """A part for a device to run, which may be cancelled already."""
        job = self.item
        ended = partial(self._on_end, self)
        made = PartJob(job, job.inputs, ended, job.output_names, job.token.child(), inline=inline)
        self._part = made
        return made

    def settle(self, error: BaseException | None) -> None:
        """Gives the job its outcome."""
        job, part = self.item, self._part
        if part is not None:
            job.input, job.inference, job.layers = part.input, part.inference, part.layers
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
