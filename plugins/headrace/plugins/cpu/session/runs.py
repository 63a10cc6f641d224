"""Passes a request's values into a session and out of it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from headrace.plugins.cpu.session.session import Session
from headrace.plugins.cpu.session.tensors import Conversion
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Value

_ARRAYS = {np.ndarray}


class Runs(Protocol):
    """Runs a job with its own run options, and returns the outputs that the job wants. Several
    threads may call it at a time. Raises the backend's errors."""

    def __call__(self, job: Job, options: Any) -> dict[str, Value]: ...


class HostRuns:
    """Takes and gives arrays in the host's memory, in their place. Thread-safe."""

    __slots__ = ("_conversion", "_session")

    def __init__(self, session: Session, conversion: Conversion) -> None:
        self._session = session
        self._conversion = conversion

    def __call__(self, job: Job, options: Any) -> dict[str, Value]:
        names, session, conversion = job.output_names, self._session, self._conversion
        if conversion.plain and {*map(type, job.inputs.values())} <= _ARRAYS:
            return dict(zip(names, session.run(names, job.inputs, options), strict=True))
        feed = conversion.feed(job.inputs)
        if conversion.as_values:
            return conversion.fetch(names, session.run_values(feed, names, options))
        return dict(zip(names, session.run(names, feed, options), strict=True))
