"""Runs requests, and keeps from an accelerator those that its kernels do not check."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from headrace.plugins.cpu.running.runs import Runs
from headrace.runtime.execution.job import Job
from headrace.runtime.network.index_bounds import IndexBounds
from headrace.runtime.network.values import Value


class CheckedRuns:
    """Refuses indices that are out of bounds, for which kernels of GPUs read another element. A
    request with an empty tensor, for which some providers have no kernel to start, runs on
    processors, in a session that the first such request opens. Thread-safe: `_lock` guards that
    session.

    Args:
        bounds: of the network's index inputs.
        on_device: runs requests on the provider.
        open_aside: makes what runs them on processors; None if the provider takes empty tensors.
        failed: called after a run on the provider has failed that nobody has cancelled.
    """

    def __init__(
        self,
        bounds: IndexBounds,
        on_device: Runs,
        open_aside: Callable[[], Runs] | None = None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._bounds = bounds
        self._on_device = on_device
        self._open_aside = open_aside
        self._failed = failed
        self._lock = threading.Lock()
        self._aside: Runs | None = None

    def instead(self, on_device: Runs) -> Runs:
        """Checks requests in the same way, and runs them on the provider by `on_device`."""
        return partial(self._run, on_device)

    def __call__(self, job: Job, options: Any) -> dict[str, Value]:
        return self._run(self._on_device, job, options)

    def _run(self, on_device: Runs, job: Job, options: Any) -> dict[str, Value]:
        self._bounds.check(job.inputs)
        if self._open_aside is None or not any(map(_is_empty, job.inputs.values())):
            return self._run_on_device(on_device, job, options)
        with self._lock:
            if self._aside is None:
                self._aside = self._open_aside()
            aside = self._aside
        return aside(job, options)

    def _run_on_device(self, on_device: Runs, job: Job, options: Any) -> dict[str, Value]:
        try:
            return on_device(job, options)
        except Exception:
            if job.token.error is None:
                self._failed()
            raise


def _is_empty(value: Value) -> bool:
    return isinstance(value, np.ndarray) and not value.size
