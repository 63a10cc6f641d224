"""The load of a benchmark: closed loops, or requests at times of their own.

In a closed loop each caller waits for its answer before it asks again, so a slow server is asked
less. An open loop asks at times that are fixed in advance, whether or not answers come. A request's
latency counts from the time at which it was meant to start. So if a server stops for a second, all
requests of that second count as late. A closed loop hides them ("coordinated omission", G. Tene,
"How NOT to Measure Latency", 2013).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from headrace.client.cli.benchmark.results import RequestResult, Results
from headrace.client.errors import Error
from headrace.client.outputs import Outputs

MOST_IN_FLIGHT: Final = 10_000
"""The most requests in flight of an open loop. Further requests fail without being sent."""
UNSENT: Final = "UNSENT"

Ask: TypeAlias = Callable[[int], Coroutine[Any, Any, Outputs]]
"""A function that sends request number N and awaits the answer."""


class ArrivalTimes(NamedTuple):
    """Times of an open loop.

    Attributes:
        per_second: the average number of requests per second.
        poisson: whether requests come at independent random times; otherwise at equal distances.
    """

    per_second: float
    poisson: bool = True

    def times(self, random: np.random.Generator) -> Iterator[float]:
        """The times in seconds, from 0.0 on. The iterator has no end."""
        at = 0.0
        while True:
            yield at
            step = 1 / self.per_second
            at += float(random.exponential(step)) if self.poisson else step


class BenchmarkRun:
    """One run of a benchmark on one event loop.

    Args:
        warm_up: seconds before the measurement; their requests do not count.
        seconds: how long the measurement takes.
        clock, sleep: the clock and the sleep function; both use seconds.
    """

    def __init__(
        self,
        ask: Ask,
        warm_up: float,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._ask = ask
        self._warm_up = warm_up
        self._seconds = seconds
        self._begin: float | None = None
        self._answers: list[RequestResult] = []
        self._sent = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the start, including the warm-up; at most the length of the run."""
        if self._begin is None:
            return 0.0
        return min(self._now() + self._warm_up, self._warm_up + self._seconds)

    @property
    def answered(self) -> int:
        """The number of requests answered so far, including those of the warm-up."""
        return len(self._answers)

    async def closed(self, callers: int) -> Results:
        """Each caller asks again once it has its answer."""
        self._start()

        async def caller() -> None:
            while (now := self._now()) < self._seconds:
                await self._request(now)

        await asyncio.gather(*(caller() for _ in range(callers)))
        return self._results()

    async def open(self, schedule: ArrivalTimes, random: np.random.Generator) -> Results:
        """Requests start at the schedule's times."""
        self._start()
        in_flight: set[asyncio.Task[None]] = set()
        for at in schedule.times(random):
            meant = at - self._warm_up
            if meant >= self._seconds:
                break
            # No request is left out to catch up after a delay. The wait for the next turn of the
            # event loop lets answers in.
            await self._sleep(max(0.0, meant - self._now()))
            if len(in_flight) >= MOST_IN_FLIGHT:
                self._answers.append(RequestResult(meant, self._now(), error=UNSENT))
                continue
            task = asyncio.ensure_future(self._request(meant))
            in_flight.add(task)
            task.add_done_callback(in_flight.discard)
        await asyncio.gather(*in_flight)
        return self._results()

    def _start(self) -> None:
        self._begin = self._clock() + self._warm_up

    def _now(self) -> float:
        """Seconds since the measurement began; below zero during the warm-up."""
        assert self._begin is not None
        return self._clock() - self._begin

    async def _request(self, meant: float) -> None:
        number = self._sent
        self._sent += 1
        try:
            timings = (await self._ask(number)).timings
        except Error as error:
            self._answers.append(RequestResult(meant, self._now(), error=error.code.name))
            return
        end = self._now()
        self._answers.append(
            RequestResult(meant, end, timings.queue_seconds, timings.execution_seconds)
        )

    def _results(self) -> Results:
        measured: Sequence[RequestResult] = [
            answer for answer in self._answers if answer.start >= 0
        ]
        return Results(self._seconds, measured)
