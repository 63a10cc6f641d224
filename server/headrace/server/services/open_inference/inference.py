"""Inference as the protocol has it, over the runtime: what gRPC and REST have in common."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from headrace.runtime.errors import Cancelled, DeadlineExceeded, NotFound
from headrace.runtime.execution.job import Job
from headrace.runtime.loading.registry import NetworkEntry, NetworkRegistry
from headrace.server.logs import CURRENT_REQUEST
from headrace.server.services.completion_sink import CompletionSink
from headrace.server.services.open_inference.call import InferCall, InferResult, RequestedOutput
from headrace.wire.codec import CodecError
from headrace.wire.request import MAX_ID_LENGTH

_ON_THE_WAY = 0.05
"""Seconds by which a caller's deadline may pass before ours."""


class Started(NamedTuple):
    """A request that the runtime has taken, and of which network."""

    call: InferCall
    job: Job
    entry: NetworkEntry


class OpenInference:
    """Belongs to the thread of one event loop, that of `sink`: gRPC and REST have one each."""

    def __init__(self, networks: NetworkRegistry, sink: CompletionSink) -> None:
        self.sink = sink
        self._networks = networks
        self._ids = itertools.count(1)
        self._wake = partial(sink.put, _wake)

    async def infer(self, call: InferCall, remaining: float | None = None) -> InferResult:
        """Computes one request.

        Args:
            remaining: seconds until the caller's own deadline.

        Raises:
            CodecError: the request breaks the protocol.
            As `NetworkRegistry.acquire` and `ExecutableNetwork.submit`, and what the job raised.
        """
        identifier = call.id or f"m{next(self._ids)}"
        CURRENT_REQUEST.set(identifier)
        started = self.start(call, remaining, self._wake)
        job = started.job
        if job.outcome is None:
            # `_wake` runs on this thread, so it has not been missed.
            job.waiter = asyncio.get_running_loop().create_future()
            try:
                await job.waiter
            except asyncio.CancelledError:
                cancel(job)
                raise
        return finish(started)

    def start(
        self, call: InferCall, remaining: float | None, done: Callable[[Job], None]
    ) -> Started:
        """Submits a request; `done` as `Job` has it. Raises as `infer`."""
        if len(call.id) > MAX_ID_LENGTH:
            raise CodecError("id", f"has at most {MAX_ID_LENGTH} characters")
        entry = self._acquire(call.model, call.version)
        job = Job(
            call.inputs,  # type: ignore[arg-type] # nothing lies in shared memory yet
            done,
            output_names=tuple(output.name for output in call.outputs),
            deadline=_deadline(call.timeout_seconds, remaining),
            priority=call.priority,
            may_run_inline=True,
            trace=call.id,
        )
        self._networks.submit(entry, job)
        return Started(call, job, entry)

    def _acquire(self, model: str, version: str) -> NetworkEntry:
        if version not in ("", "1"):
            raise NotFound(f"model {model[:200]!r} has no version {version[:20]!r}; it has 1")
        return self._networks.acquire(model)


def finish(started: Started) -> InferResult:
    """The result of a job that has its outcome.

    Raises:
        What the job raised.
    """
    call, job, _ = started
    if job.error is not None:
        raise job.take_error()
    outputs = call.outputs or tuple(map(RequestedOutput, job.output_names))
    values = [(output, job.outputs[output.name]) for output in outputs]
    return InferResult(call.model, "1", call.id, values)


def cancel(job: Job) -> None:
    """Tells a job that its caller is gone."""
    late = job.deadline is not None and time.monotonic() > job.deadline - _ON_THE_WAY
    job.token.cancel(
        DeadlineExceeded("the deadline passed before the request finished")
        if late
        else Cancelled("the caller cancelled the request")
    )


def _wake(job: Job) -> None:
    waiter = job.waiter
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _deadline(timeout: float, remaining: float | None) -> float | None:
    if timeout:
        remaining = timeout if remaining is None else min(timeout, remaining)
    return None if remaining is None else time.monotonic() + remaining
