"""Runs loaded networks for the runtime itself: to try them out and to measure their time.

These runs count as parts and not as requests, so limits and counters of requests ignore them. The
calling thread waits for them. It belongs to no device.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import Cancelled, FailedPrecondition
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, Ticket
from headrace.runtime.execution.timer import Timer
from headrace.runtime.network.values import Value
from headrace.runtime.virtual.part_job import submit

TICKET: Final = Ticket("a measurement")
_MOST_SETTLING_RUNS: Final = 500
_MOST_SETTLING_SECONDS: Final = 20.0
_SETTLING_PAUSE_SECONDS: Final = 0.02
_TURN_SECONDS: Final = 0.01
"""What one turn of short runs takes."""
_DEVIATIONS: Final = 2.0
"""So many standard deviations to both sides have 95 of 100 cases between them."""


class _Together:
    """Jobs that were started together. Each job releases the semaphore `_left` when it ends.

    Args:
        keep: whether the outputs are wanted.
    """

    def __init__(
        self, network: ExecutableNetwork, token: CancelToken, *, keep: bool = False
    ) -> None:
        self._network = network
        self._keep = keep
        self._token = token.child()
        self._left = threading.Semaphore(0)
        self.jobs: list[Job] = []

    def start(self, inputs: Mapping[str, Value], priority: int = 0, *, inline: bool) -> None:
        names = tuple(port.name for port in self._network.outputs)
        job = Job(
            inputs,
            self._ended,
            output_names=names,
            priority=priority,
            token=self._token,
            ticket=TICKET,
            may_run_inline=inline,
        )
        self.jobs.append(job)
        submit(job, self._network)

    def _ended(self, job: Job) -> None:
        if not self._keep:
            job.drop_values()
        self._left.release()

    def wait(self) -> None:
        for _ in self.jobs:
            self._left.acquire()
        self._token.close()
        for job in self.jobs:
            if job.error is not None:
                raise job.error


@contextmanager
def within(seconds: float, token: CancelToken, timer: Timer) -> Iterator[CancelToken]:
    """A child of the token that is cancelled, too, when the time is over."""
    child, late = token.child(), Cancelled(f"it took more than {seconds:g} s")
    entry = timer.schedule(time.monotonic() + seconds, lambda: child.cancel(late))
    try:
        yield child
    finally:
        timer.cancel(entry)
        child.close()


def run(
    network: ExecutableNetwork, inputs: Mapping[str, Value], token: CancelToken
) -> dict[str, Value]:
    """Runs the network once and returns its outputs. Raises what the run raises."""
    together = _Together(network, token, keep=True)
    together.start(inputs, inline=False)
    together.wait()
    return together.jobs[0].outputs


def seconds(
    network: ExecutableNetwork,
    requests: Sequence[Mapping[str, Value]],
    token: CancelToken,
    *,
    priority: int = 0,
    inline: bool = False,
) -> float:
    """The time that the requests take if all are submitted at once. Raises what one of them raises.

    Args:
        priority: of the requests.
        inline: whether the calling thread may run them, as a front-end's would.
    """
    together = _Together(network, token)
    start = time.perf_counter()
    for inputs in requests:
        together.start(inputs, priority, inline=inline)
    together.wait()
    return time.perf_counter() - start


def quickest(
    network: ExecutableNetwork,
    inputs: Mapping[str, Value],
    token: CancelToken,
    *,
    priority: int = 0,
) -> float:
    """The seconds of a request alone, as a front-end runs it: the best of as many as one turn has
    time for, because whatever else the machine does only adds to it. Raises what a run raises."""
    spent, best = 0.0, math.inf
    while spent < _TURN_SECONDS:
        took = seconds(network, [inputs], token, priority=priority, inline=True)
        spent, best = spent + took, min(best, took)
    return best


def settle(
    network: ExecutableNetwork,
    inputs: Mapping[str, Value],
    token: CancelToken,
    *,
    priority: int = 0,
    before: Callable[[], object] = lambda: None,
    pause: Callable[[float], object] | None = None,
) -> float:
    """Runs the network until its device tries nothing out for it any more. Returns the seconds of
    the last run.

    Args:
        before: called before each run.
        pause: waits for so many seconds between runs, or less.

    Raises:
        FailedPrecondition: the device does not settle.
        Whatever a run raises.
    """
    pause = pause if pause is not None else threading.Event().wait
    until = time.monotonic() + _MOST_SETTLING_SECONDS
    for number in range(_MOST_SETTLING_RUNS):
        before()
        took = seconds(network, [inputs], token, priority=priority, inline=True)
        if number and network.is_settled():
            return took
        if time.monotonic() > until:
            break
        if number:
            pause(_SETTLING_PAUSE_SECONDS)  # it may compile meanwhile
    raise FailedPrecondition("the device does not settle on how to run it")


class SpeedRatio(NamedTuple):
    """How fast one network was beside another one.

    Attributes:
        ratio: of its speed to the other's, the median of all rounds.
        low, high: the bounds of this median's error.
    """

    ratio: float
    low: float
    high: float


def compare(ours: Sequence[float], theirs: Sequence[float]) -> SpeedRatio:
    """Compares two networks round by round, because what else the machine does falls on both. The
    bounds are those of the binomial distribution: if the true ratio is outside of them, a case of
    one in twenty has happened."""
    ratios = sorted(their / our for our, their in zip(ours, theirs, strict=True))
    count = len(ratios)
    below = max(0, int(count / 2 - _DEVIATIONS * math.sqrt(count) / 2))
    return SpeedRatio(statistics.median(ratios), ratios[below], ratios[count - 1 - below])


def in_turns(
    runs: Sequence[Callable[[], float]],
    *,
    fewest: int,
    most: int,
    left_seconds: float,
    enough: Callable[[Sequence[Sequence[float]]], bool] = lambda _: False,
    clock: Callable[[], float] = time.monotonic,
) -> list[list[float]]:
    """The results of each run in all rounds. The runs take turns, so that all have the same
    conditions.

    Args:
        runs: each returns what one run took, in seconds.
        fewest, most: rounds.
        left_seconds: the time for all rounds. After the fewest rounds, no round begins that would
            take longer than this in total.
        enough: whether no further round is needed after these.
    """
    begun = clock()
    took: list[list[float]] = [[] for _ in runs]
    for number in range(1, most + 1):
        round_begun = clock()
        for each, run in zip(took, runs, strict=True):
            each.append(run())
        now = clock()
        if number >= fewest and (now - begun + now - round_begun > left_seconds or enough(took)):
            break
    return took
