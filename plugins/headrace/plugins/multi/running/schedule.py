"""Decides which request runs on which device. It is a state machine that turns events into
instructions.

Requests wait in one queue, in the order of `fair_queue`: by priority with ageing. So fewer than
``priority difference * HEAD_START`` later requests overtake a request. Whenever devices have room,
the first of them in the list takes the request at the head of the queue. So no request waits while
a device that may run it is free.

A device that fails is taken out and, after a back-off, tried with one request. A request that was
on it runs again on another device, once, before the requests that never ran. So each request is
overtaken by at most the requests that were on devices that failed meanwhile. A failure that may be
the request's own fault takes the device out only once another device has run the request. A device
that refuses a request's values stays in, and one other device that serves is tried.

If no device serves, requests wait for PATIENCE_SECONDS and then get an error.

The code is pure and not thread-safe. Times are arguments, in seconds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import Generic

from headrace.plugins.multi.running.availability import (
    UNLIMITED,
    Availability,
    Culprit,
    ScheduledDevice,
)
from headrace.plugins.multi.running.requests import (
    AnswerRequest,
    FailedRun,
    Instruction,
    PooledRequest,
    ReportOutage,
    RunRequest,
    T,
)
from headrace.runtime.errors import Unavailable, public_text
from headrace.runtime.execution.fair_queue import FairQueue, Flow

PATIENCE_SECONDS = 2.0


class Schedule(Generic[T]):
    """
    Args:
        limits: the devices, the preferred one first, and how many requests each runs at once.
        spill: whether a device takes requests that the devices before it have no room for.
            Otherwise it takes requests only while none of the devices before it serves.

    Attributes:
        is_calm: whether all devices serve, and no request runs again. Nothing needs to be woken
            then, and a request needs little.
    """

    def __init__(
        self,
        limits: Iterable[tuple[str, int]],
        now: float,
        *,
        spill: bool = True,
    ) -> None:
        self._spill = spill
        self._queue: FairQueue[PooledRequest[T]] = FairQueue()
        self._flow: Flow[PooledRequest[T]] = Flow(sys.maxsize)
        self._retries: dict[PooledRequest[T], None] = {}
        self._devices: dict[str, ScheduledDevice] = {}  # includes devices that left the list
        self._order: list[ScheduledDevice] = []
        self._first = self._order  # those that take requests while all serve
        self._none_serves_since = now  # no device has served since; infinite while one does
        self._answers: list[Instruction[T]] = []
        self.is_calm = False
        self.arrange(limits, now)

    # -- the present state --

    @property
    def waiting(self) -> int:
        """The number of requests that are on no device."""
        return len(self._queue) + len(self._retries)

    @property
    def devices(self) -> tuple[ScheduledDevice, ...]:
        """The devices of the list in order of preference. Do not change them."""
        return tuple(self._order)

    def running_on(self, name: str) -> int:
        """The number of requests that a device has, whether it is in the list or has left it."""
        return len(self._devices[name].at_work)

    @property
    def wake_at(self) -> float:
        """When `tick` is due; infinite if never."""
        if self.is_calm:
            return math.inf
        due = [member.until for member in self._order if member.availability is Availability.OUT]
        due += (request.stranded_since + PATIENCE_SECONDS for request in self._retries)
        if len(self._queue) and not self._any_takes(None):
            due.append(self._none_serves_since + PATIENCE_SECONDS)
        return min(due, default=math.inf)

    @property
    def direct(self) -> ScheduledDevice | None:
        """The device that takes every request now, however many come. A request that it has run
        matters to no other one. None if there is no such device."""
        return self._first[0] if self.is_calm and self._first[0].limit == UNLIMITED else None

    # -- events --

    def start(self) -> ScheduledDevice | None:
        """The device that runs a new request at once. None if the request has to `arrive`. This is
        the usual case, and is quick: nobody keeps the request."""
        if self.is_calm:
            for device in self._first:
                if len(device.at_work) < device.limit:
                    device.at_work.append(None)
                    return device
        return None

    def ran(self, device: ScheduledDevice) -> bool:
        """Notes that the device has run a request that it got from `start`. Returns False if that
        may matter to other requests, and does nothing: then it has to be `completed`."""
        if not self.is_calm or self._queue.length:
            return False
        device.at_work.pop()
        return True

    def arrive(self, request: PooledRequest[T], now: float) -> list[Instruction[T]]:
        """Takes a new request."""
        request.entry = self._queue.push(self._flow, request, request.priority)
        return [*self._dispatch()] if self.is_calm else self._instructions(now)

    def completed(self, request: PooledRequest[T], now: float) -> list[Instruction[T]]:
        """Notes that the device has run the request, which has its answer."""
        device, is_recent = self._leave(request)
        serves = device.availability is Availability.SERVING
        if self.is_calm and serves and request.failed_run is None:
            return [*self._dispatch()]
        if is_recent and device.availability is Availability.ON_TRIAL:
            self._put_back(device, now)
        failed = request.failed_run
        if failed is not None and failed.is_suspect:
            why = f"{device.name} could run what failed there: {public_text(request.error)}"
            self._take_out(failed.device, why, now)
        return self._instructions(now)

    def failed(
        self, request: PooledRequest[T], error: BaseException, blame: Culprit, now: float
    ) -> list[Instruction[T]]:
        """Notes that the request ended on its device without output."""
        device, is_recent = self._leave(request)
        on_trial = device.availability is Availability.ON_TRIAL
        if is_recent and (blame is Culprit.DEVICE or (blame is Culprit.UNCLEAR and on_trial)):
            self._take_out(device, public_text(error), now)
        refused = blame is Culprit.VALUES and not self._any_takes(device)
        if blame is Culprit.REQUEST or refused or request.error is not None:
            self._answers.append(AnswerRequest(request, error))
        else:
            outages = device.outages if is_recent and blame is Culprit.UNCLEAR else None
            request.error, request.failed_run = error, FailedRun(device, outages)
            self._retries[request] = None
        return self._instructions(now)

    def cancelled(
        self, request: PooledRequest[T], error: BaseException, now: float
    ) -> list[Instruction[T]]:
        """Notes that the caller no longer waits for the request. Does nothing if the request runs,
        because its device is told and reports when the request has ended."""
        if request in self._retries:
            del self._retries[request]
        elif request.entry is None or not self._queue.remove(request.entry):
            return []
        self._answers.append(AnswerRequest(request, error))
        return self._instructions(now)

    def down(self, name: str, reason: str, now: float) -> list[Instruction[T]]:
        """Notes that the device reports that it is down."""
        device = self._devices[name]
        was_out = device.availability is Availability.OUT
        device.went_down(reason, now)
        if not was_out:
            self._answers.append(ReportOutage(name, reason))
        return self._instructions(now)

    def up(self, name: str, now: float) -> list[Instruction[T]]:
        """Notes that the device reports that it is up. The device serves at once if it had reported
        that it was down."""
        device = self._devices[name]
        if device.came_up():
            self._put_back(device, now)
        return self._instructions(now)

    def tick(self, now: float) -> list[Instruction[T]]:
        """Notes that time has passed."""
        for device in self._devices.values():
            device.try_again(now)
        return self._instructions(now)

    def arrange(self, limits: Iterable[tuple[str, int]], now: float) -> list[Instruction[T]]:
        """Sets another order, other limits or other devices. A device that is left out gets no more
        requests, and finishes the requests that it has."""
        order = []
        for name, limit in limits:
            device = self._devices.setdefault(name, ScheduledDevice(name, limit))
            device.limit = limit
            order.append(device)
        self._order, self._first = order, order if self._spill else order[:1]
        return self._instructions(now)

    # -- inside --

    def _instructions(self, now: float) -> list[Instruction[T]]:
        self.is_calm = False
        runs: list[Instruction[T]] = [*self._dispatch()]
        self._answer_hopeless(now)
        serve = all(member.availability is Availability.SERVING for member in self._order)
        self.is_calm = serve and bool(self._order) and not self._retries
        answers, self._answers = self._answers, []
        return runs + answers  # devices first: a caller can wait longer than a device

    def _dispatch(self) -> Iterator[RunRequest[T]]:
        for request in [*self._retries]:
            assert request.failed_run is not None
            device = self._free(request.failed_run.device)
            if device is not None:
                del self._retries[request]
                yield RunRequest(request, self._begin(request, device))
        while self._queue.length:
            device = self._free(None)
            popped = self._queue.pop() if device is not None else None
            if device is None or popped is None:
                return
            flow, request = popped
            self._queue.finished(flow)
            yield RunRequest(request, self._begin(request, device))

    def _begin(self, request: PooledRequest[T], device: ScheduledDevice) -> str:
        device.start()
        request.device, request.outages = device, device.outages
        return device.name

    def _free(self, failed_on: ScheduledDevice | None) -> ScheduledDevice | None:
        """The free device for a request that failed on `failed_on`. None means that the request has
        not failed."""
        for member in self._first if self.is_calm else self._takers(failed_on):
            if member.has_room:
                return member
        return None

    def _takers(self, failed_on: ScheduledDevice | None) -> Iterator[ScheduledDevice]:
        """The devices that may run such a request once they have room. A request that has failed
        does not get a device on trial while another device serves, because the next run is its
        last."""
        for device in self._order:
            if device is failed_on or device.availability is Availability.OUT:
                continue
            if device.availability is Availability.SERVING:
                yield device
                if not self._spill:
                    return
            elif failed_on is None or not self._any_serves_but(failed_on):
                yield device

    def _any_serves_but(self, device: ScheduledDevice) -> bool:
        return any(e.availability is Availability.SERVING for e in self._order if e is not device)

    def _any_takes(self, failed_on: ScheduledDevice | None) -> bool:
        return next(self._takers(failed_on), None) is not None

    def _answer_hopeless(self, now: float) -> None:
        """Answers requests that have waited too long for a device with an error."""
        serves = any(member.availability is Availability.SERVING for member in self._order)
        self._none_serves_since = math.inf if serves else min(self._none_serves_since, now)
        for request in [*self._retries]:
            assert request.failed_run is not None
            failed_on = request.failed_run.device
            if self._any_takes(failed_on):
                request.stranded_since = math.inf
                continue
            request.stranded_since = min(request.stranded_since, now)
            alone = all(member is failed_on for member in self._order)
            if alone or now >= request.stranded_since + PATIENCE_SECONDS:
                del self._retries[request]
                assert request.error is not None
                self._answers.append(AnswerRequest(request, request.error))
        if now >= self._none_serves_since + PATIENCE_SECONDS and not self._any_takes(None):
            for request in self._queue.drain():
                self._answers.append(AnswerRequest(request, self._nobody_serves(now)))

    def _nobody_serves(self, now: float) -> Unavailable:
        reasons = "; ".join(f"{member.name}: {member.reason}" for member in self._order)
        error = Unavailable(f"none of the network's devices works; {reasons}")
        until = min((member.until for member in self._order), default=math.inf)
        error.retry_delay_seconds = max(until - now, 0.05) if until < math.inf else PATIENCE_SECONDS
        return error

    def _leave(self, request: PooledRequest[T]) -> tuple[ScheduledDevice, bool]:
        device, request.device = request.device, None
        assert device is not None, "the request is on no device"
        return device, device.end(request.outages)

    def _take_out(self, device: ScheduledDevice, reason: str, now: float) -> None:
        if device.availability is not Availability.OUT:
            device.take_out(reason, now)
            self._answers.append(ReportOutage(device.name, reason))

    def _put_back(self, device: ScheduledDevice, now: float) -> None:
        device.put_back(now)
        self._answers.append(ReportOutage(device.name))
