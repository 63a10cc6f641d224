"""Writes what the trace says of a request, or of a part of one, when it has its outcome."""

from __future__ import annotations

from headrace.runtime.execution.job import Job
from headrace.runtime.execution.trace import Fact, Span, status_of


def record(
    job: Job, span: Span, network: str, device: str, *, part: bool, on_streams: bool, process: str
) -> None:
    """Writes the spans of a traced job from its time stamps.

    A part's own span ends here. The span of a whole request ends with the reply.

    Args:
        span: the job's.
        network: the network's name; "" if it has none.
        on_streams: whether the job waited for a stream of the device, and ran on it.
        process: the process that ran the job, if it is not the server.
    """
    facts = span.facts
    facts["headrace.device"] = device
    if network:
        facts["headrace.network"] = network
    if job.version:
        facts["headrace.version"] = job.version
    assert job.outcome is not None
    facts["headrace.outcome"] = job.outcome.value
    status = status_of(job.error)
    if on_streams:
        waited = job.started or job.finished
        queue: dict[str, Fact] = {"priority": job.priority} if job.priority else {}
        span.add(f"queue {device}", job.queued, waited, "" if job.started else status, **queue)
        if job.started:
            how: dict[str, Fact] = {"device": device}
            if job.inference_seconds:
                how["inference_seconds"] = job.inference_seconds
            if process:
                how["process"] = process
            span.add(f"execute {device}", job.started, job.finished, status, **how)
    if part:
        span.name = f"{span.name} {device}"
        span.start = job.queued
        span.finish(job.finished, status)
