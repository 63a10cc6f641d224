"""A part of a request, which a virtual device has another device run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Value


class PartJob(Job):
    """Has the request's ticket and conditions; the start of the first part is the request's.

    Args:
        request: the whole request.
        token: the part's own, a child of the request's.
    """

    __slots__ = ("_request", "_started")

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
        )

    @property
    def started(self) -> float:
        return self._started

    @started.setter
    def started(self, seconds: float) -> None:
        self._started = seconds
        if seconds and not self._request.started:
            self._request.started = seconds
