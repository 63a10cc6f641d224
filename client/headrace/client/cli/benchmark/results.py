"""The results of a benchmark's requests, and the figures computed from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

PERCENTILES: Final = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class RequestResult:
    """The result of one request. Times are in seconds since the measurement began.

    Attributes:
        start: when it was meant to start. If it was sent late, the delay is part of its latency.
        queue, execution: the times that the server reports; 0.0 for a request that failed.
        error: the status it failed with; empty if it did not fail.
    """

    start: float
    end: float
    queue: float = 0.0
    execution: float = 0.0
    error: str = ""

    @property
    def latency(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of some times in seconds."""

    mean: float
    most: float
    percentiles: Mapping[int, float]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread | None:
        """The spread of these times; None if there are none."""
        if not seconds:
            return None
        found = np.percentile(seconds, PERCENTILES, method="higher")
        return cls(
            float(np.mean(seconds)),
            max(seconds),
            {percent: float(value) for percent, value in zip(PERCENTILES, found, strict=True)},
        )


@dataclass(frozen=True, slots=True)
class Results:
    """A finished benchmark.

    Attributes:
        seconds: for how long requests were started.
        answers: the results of the requests that started in this time.
    """

    seconds: float
    answers: Sequence[RequestResult]

    @property
    def completed(self) -> list[RequestResult]:
        return [answer for answer in self.answers if not answer.error]

    @property
    def errors(self) -> dict[str, int]:
        """The number of failed requests for each status, the most frequent first."""
        return dict(Counter(answer.error for answer in self.answers if answer.error).most_common())

    @property
    def throughput(self) -> float:
        """Requests answered per second, within the time in which they were started."""
        return sum(answer.end <= self.seconds for answer in self.completed) / self.seconds

    def spreads(self) -> dict[str, Spread]:
        """The latency of the requests that were answered, and its parts. Empty if none."""
        completed = self.completed
        parts = {
            "latency": [answer.latency for answer in completed],
            "queue": [answer.queue for answer in completed],
            "execution": [answer.execution for answer in completed],
            "elsewhere": [result.latency - result.queue - result.execution for result in completed],
        }
        found = {name: Spread.of(seconds) for name, seconds in parts.items()}
        return {name: spread for name, spread in found.items() if spread is not None}

    def over_time(self, bins: int) -> tuple[list[float], list[float]]:
        """Answers per second in each of some equal pieces of the time, and the pieces' ends."""
        edges = np.linspace(0.0, self.seconds, bins + 1)
        counts, _ = np.histogram([answer.end for answer in self.completed], edges)
        return (counts * bins / self.seconds).tolist(), edges[1:].tolist()
