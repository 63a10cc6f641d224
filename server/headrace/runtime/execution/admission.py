"""Admission: the outermost network limits how many accepted requests are unfinished."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.runtime.errors import QueueFull
from headrace.runtime.execution.job import Job, Ticket

_SMOOTHING = 1 / 16


class Admission:
    """Counts requests in and out. Thread-safe; `_lock` guards the numbers.

    Args:
        name: the device's name, for messages.
        capacity: how many requests may wait; QUEUE_CAPACITY.
        streams: returns how many run at once, so `capacity + streams()` may be in flight.
    """

    def __init__(self, name: str, capacity: int, streams: Callable[[], int]) -> None:
        self.ticket = Ticket(name)
        self.capacity = capacity
        self._streams = streams
        self._lock = threading.Lock()
        self._in_flight = 0
        self._mean_seconds = 0.0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def admit(self, job: Job) -> None:
        """Gives the job its ticket.

        Raises:
            QueueFull: the queue is full. The delay for a retry is the time to empty the queue.
        """
        with self._lock:
            if self._in_flight >= self.capacity and (
                self._in_flight >= self.capacity + (streams := self._streams())
            ):
                delay = self._in_flight * self._mean_seconds / streams
                raise QueueFull(
                    f"the queue of {self.ticket.admitted_by} is full: {self._in_flight} requests "
                    f"in flight, QUEUE_CAPACITY is {self.capacity}; try again later or elsewhere",
                    retry_delay_seconds=min(max(delay, 0.001), 60.0),
                )
            self._in_flight += 1
        job.ticket = self.ticket

    def release(self, job: Job) -> None:
        """Counts an admitted job as finished, and tells it how many others are left."""
        with self._lock:
            self._in_flight -= 1
            job.in_flight = self._in_flight
            if job.started:
                self._mean_seconds += _SMOOTHING * (job.execution_seconds - self._mean_seconds)
