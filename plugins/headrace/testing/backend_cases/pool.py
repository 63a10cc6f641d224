"""Runs cases in a pool of processes, so that a crash or a hang affects only one case."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from headrace.runtime.errors import Unavailable
from headrace.testing.backend_cases.cases import BackendCase
from headrace.testing.backend_cases.outcome import CaseOutcome, Result
from headrace.testing.backend_cases.worker import DeviceUnderTest, run_worker
from headrace.testing.guarded import GuardedProcess

_START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class CaseResults:
    """A device's results for the cases.

    Attributes:
        results: in the order of the cases.
        capabilities: the device's OPTIMIZATION_CAPABILITIES. A virtual device has those of all its
            members.
    """

    device: str
    backend_version: str
    results: tuple[Result, ...]
    seconds: float
    capabilities: tuple[str, ...] = ()


@dataclass(slots=True)
class _Worker:
    process: GuardedProcess
    deadline: float
    version: str | None = None  # None until it has started
    case: BackendCase | None = None
    claimed: bool = field(default=False)


def run_cases(
    device: DeviceUnderTest,
    cases: Sequence[BackendCase],
    *,
    jobs: int = 2,
    limit_seconds: float = 300.0,
    report: Callable[[Result], None] = lambda _: None,
) -> CaseResults:
    """Runs every case in one of `jobs` processes, each started again after a crash or a time-out.

    Args:
        limit_seconds: the time that a case may take, including its load.
        report: called with each result as it comes.

    Raises:
        Unavailable: the device does not start.
    """
    return _Pool(device, cases, limit_seconds, report).run(min(jobs, len(cases)))


class _Pool:
    def __init__(
        self,
        device: DeviceUnderTest,
        cases: Sequence[BackendCase],
        limit_seconds: float,
        report: Callable[[Result], None],
    ) -> None:
        self._device = device
        self._order = [case.name for case in cases]
        # The last ones are taken first: models take longest.
        self._waiting = sorted(cases, key=lambda case: case.kind == "real")
        self._limit_seconds = limit_seconds
        self._report = report
        self._workers: list[_Worker] = []
        self._results: dict[str, Result] = {}
        self._version = ""
        self._capabilities: tuple[str, ...] = ()

    def run(self, jobs: int) -> CaseResults:
        start = time.monotonic()
        try:
            self._workers += (self._start() for _ in range(jobs))
            while len(self._results) < len(self._order):
                self._step()
        finally:
            for worker in self._workers:
                worker.process.end()
        results = tuple(self._results[name] for name in self._order)
        seconds = time.monotonic() - start
        return CaseResults(self._device.name, self._version, results, seconds, self._capabilities)

    def _start(self) -> _Worker:
        process = GuardedProcess(run_worker, (self._device,))
        return _Worker(process, time.monotonic() + _START_SECONDS)

    def _step(self) -> None:
        now = time.monotonic()
        busy = [each for each in self._workers if each.version is None or each.case is not None]
        nearest = min(worker.deadline for worker in busy)
        ready = wait([worker.process.connection for worker in busy], max(0.0, nearest - now))
        for worker in busy:
            if worker.process.connection in ready:
                self._receive(worker)
            elif worker.deadline <= time.monotonic():
                self._lose(worker, CaseOutcome.TIMED_OUT, f"after {self._limit_seconds:g} s")

    def _receive(self, worker: _Worker) -> None:
        try:
            message = worker.process.connection.recv()
        except (EOFError, OSError):
            self._lose(worker, CaseOutcome.CRASHED, worker.process.ending())
            return
        if isinstance(message, bool):
            worker.claimed = message
        elif isinstance(message, Result):
            self._keep(message)
            self._next(worker)
        elif isinstance(message, tuple):
            _, worker.version, self._capabilities = message
            self._version = worker.version or ""
            self._next(worker)
        else:
            raise Unavailable(f"{message}\n{worker.process.last_words()}".strip())

    def _next(self, worker: _Worker) -> None:
        worker.case, worker.claimed = None, False
        if self._waiting:
            worker.case = self._waiting.pop()
            worker.deadline = time.monotonic() + self._limit_seconds
            worker.process.connection.send(worker.case)

    def _lose(self, worker: _Worker, outcome: CaseOutcome, reason: str) -> None:
        """Gives up a process that died or hangs, and has another one take its place."""
        case = worker.case
        words = worker.process.last_words()
        worker.process.kill()
        if case is None:
            start = f"device {self._device.name} did not start: {outcome.value}, {reason}"
            raise Unavailable(f"{start}\n{words}".strip())
        self._keep(Result(case.name, outcome, worker.claimed, reason))
        if self._waiting:
            self._workers[self._workers.index(worker)] = self._start()
        else:
            self._workers.remove(worker)

    def _keep(self, result: Result) -> None:
        self._results[result.case] = result
        self._report(result)
