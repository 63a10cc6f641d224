"""A part of a request. A virtual device gives it to another device to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Value


class PartJob(Job):
    """A part has the ticket, deadline and priority of its request. The start of the first part is
    the start of the request.

    Attributes:
        kind: what the trace calls such a part.

    Args:
        request: the whole request.
        token: the part's own, a child of the request's.
    """

    __slots__ = ("_request", "_started")

    kind: ClassVar[str] = "part"

    def __init__(
        self,
        request: Job,
        inputs: Mapping[str, Value],
        done: Callable[[Job], None],
        output_names: tuple[str, ...],
        token: CancelToken,
        *,
        inline: bool,
    ) -> None:
        self._request = request
        super().__init__(
            inputs,
            done,
            output_names=output_names,
            deadline=request.deadline,
            priority=request.priority,
            token=token,
            ticket=request.ticket,
            profile=request.profile,
            may_run_inline=inline,
            trace=request.trace,
            span=None if request.span is None else request.span.child(self.kind),
            owner=request.owner,
        )

    def take_outputs(self) -> tuple[dict[str, Value], BaseException | None]:
        """The outputs of a part that has ended, and its error if it failed. The part drops all
        values, because other objects may refer to the part for a while."""
        outputs, error = self.outputs, self.error
        self.inputs, self.outputs = {}, {}
        self.token.close()
        return outputs, error

    @property
    def started(self) -> float:
        return self._started

    @started.setter
    def started(self, seconds: float) -> None:
        self._started = seconds
        if seconds and not self._request.started:
            self._request.started = seconds


class TakesJobs(Protocol):
    """A network, or what stands for one."""

    def submit(self, job: Job) -> None:
        """Accepts the job. Raises as `ExecutableNetwork.submit`."""


def submit(job: Job, network: TakesJobs) -> None:
    """Submits a job with a ticket, which may be cancelled already: a part, or the whole request. If
    the device raises, the job fails."""
    try:
        if job.token.error is not None:
            raise job.token.error
        network.submit(job)
    except Exception as error:  # noqa: BLE001 - as the outcome of the job
        job.fail(error)
