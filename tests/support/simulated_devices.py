"""Devices, callers and a clock that a schedule of several devices is driven with.

Nothing here waits: the clock jumps to the next event. After every event the world checks what a
schedule owes to its callers and its devices.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.plugins.multi.running.availability import (
    Availability,
    Culprit,
    ScheduledDevice,
    blame,
)
from headrace.plugins.multi.running.requests import (
    AnswerRequest,
    Instruction,
    PooledRequest,
    ReportOutage,
    RunRequest,
)
from headrace.plugins.multi.running.schedule import Schedule
from headrace.runtime.errors import Cancelled, DeadlineExceeded, InvalidArgument, Unavailable
from headrace.runtime.execution.fair_queue import HEAD_START


@dataclass(eq=False)
class Asked:
    """A request as its caller sees it."""

    number: int
    priority: int
    is_bad: bool = False
    fails: bool = False  # wherever it runs, in a way that may be the device's fault
    ran_on: list[str] = field(default_factory=list)
    runs_on: str = ""
    token: BaseException | None = None
    answered_at: float = math.nan
    error: BaseException | None = None

    @property
    def is_answered(self) -> bool:
        return not math.isnan(self.answered_at)


@dataclass
class Device:
    """What a device does with its requests at the moment."""

    name: str
    seconds: float
    is_gone: bool = False  # requests fail with Unavailable
    is_broken: bool = False  # requests fail with a bug
    is_choosy: bool = False  # requests are refused for their values
    in_flight: int = 0


class World:
    """One schedule, its devices and its callers.

    Args:
        devices: the preferred one first, with limits.
        spill: as of `Schedule`.
    """

    def __init__(
        self, devices: Iterable[tuple[Device, int]], *, spill: bool = True, seed: int = 0
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.spill = spill
        self.limits: dict[str, int] = {}
        self.devices: dict[str, Device] = {}
        self.asked: list[Asked] = []
        self.reports: list[ReportOutage] = []
        self.first_runs: list[Asked] = []
        self._requests: dict[Asked, PooledRequest[Asked]] = {}
        self._waiting: dict[Asked, None] = {}
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        for device, limit in devices:
            self.devices[device.name], self.limits[device.name] = device, limit
        self.schedule: Schedule[Asked] = Schedule(self.limits.items(), self.now, spill=spill)

    # -- what may happen --

    def arrive(self, priority: int = 0, *, is_bad: bool = False, fails: bool = False) -> Asked:
        asked = Asked(len(self.asked), priority, is_bad, fails)
        self.asked.append(asked)
        request = self._requests[asked] = PooledRequest(asked, priority)
        self._waiting[asked] = None
        if device := self.schedule.start():
            request.device, request.outages = device, device.outages
            self._obey([RunRequest(request, request.device.name)])
        else:
            self._obey(self.schedule.arrive(request, self.now))
        return asked

    def cancel(self, asked: Asked, error: BaseException | None = None) -> None:
        """The caller goes away, or its deadline passes; a device stops what it runs soon after."""
        if asked.is_answered:
            return
        asked.token = asked.token or error or Cancelled("not wanted")
        self._obey(self.schedule.cancelled(self._requests[asked], asked.token, self.now))

    def expire_at(self, asked: Asked, when: float) -> None:
        self._at(when, lambda: self.cancel(asked, DeadlineExceeded("late")))

    def arrange(self, *places: tuple[str, int]) -> None:
        self.limits = dict(places)
        for name in self.limits:
            self.devices.setdefault(name, Device(name, 0.01))
        self._obey(self.schedule.arrange(places, self.now))

    def down(self, name: str) -> None:
        self.devices[name].is_gone = True
        self._obey(self.schedule.down(name, "unplugged", self.now))

    def up(self, name: str) -> None:
        self.devices[name].is_gone = False
        self._obey(self.schedule.up(name, self.now))

    # -- time --

    def run_until(self, end: float) -> None:
        """Lets everything happen that is due."""
        while (when := min(self._next(), self.schedule.wake_at)) <= end:
            self.now = max(self.now, when)
            if self._next() <= self.now:
                heapq.heappop(self._events)[2]()
            else:
                self._obey(self.schedule.tick(self.now))
        self.now = max(self.now, end)

    def run_out(self) -> None:
        """Lets everything happen that ever will; trials that wait for a request are no event."""
        while self._events or self._waiting:
            when = min(self._next(), self.schedule.wake_at)
            assert when < math.inf, f"nothing will happen any more: {self.unanswered()}"
            self.run_until(when)

    def unanswered(self) -> list[Asked]:
        return [asked for asked in self.asked if not asked.is_answered]

    # -- what the schedule wants, and whether it may --

    def _obey(self, instructions: Iterable[Instruction[Asked]]) -> None:
        for each in instructions:
            if isinstance(each, RunRequest):
                self._run(each.request.item, each.device)
            elif isinstance(each, AnswerRequest):
                self._answer(each.request.item, each.error)
            else:
                self.reports.append(each)
        self._check_that_nobody_waits_in_vain()

    def _run(self, asked: Asked, name: str) -> None:
        device, scheduled = self.devices[name], self._scheduled(name)
        assert not asked.is_answered, "it has its answer"
        assert not asked.runs_on, "it runs already"
        assert name not in asked.ran_on, "it failed there"
        assert len(asked.ran_on) < 2, "it ran twice"
        assert scheduled.availability is not Availability.OUT, "the device is out"
        device.in_flight += 1
        assert device.in_flight <= self.limits[name], "the device is over its limit"
        if not asked.ran_on:
            self.first_runs.append(asked)
        asked.ran_on.append(name)
        asked.runs_on = name
        del self._waiting[asked]
        seconds = device.seconds * self.random.uniform(0.5, 1.5)
        self._at(self.now + seconds, lambda: self._end(asked))

    def _end(self, asked: Asked) -> None:
        device, request = self.devices[asked.runs_on], self._requests[asked]
        device.in_flight -= 1
        error: BaseException | None = asked.token
        if error is None and device.is_gone:
            error = Unavailable("gone")
        elif error is None and (device.is_broken or asked.fails):
            error = RuntimeError("broken")
        elif error is None and (asked.is_bad or device.is_choosy):
            error = InvalidArgument("bad")
        asked.runs_on = ""
        self._waiting[asked] = None
        if error is None:
            self._answer(asked, None)
            assert request.device is not None
            if request.error is not None or not self.schedule.ran(request.device):
                self._obey(self.schedule.completed(request, self.now))
            return
        fault = Culprit.REQUEST if asked.token is not None else blame(error)
        self._obey(self.schedule.failed(request, error, fault, self.now))

    def _answer(self, asked: Asked, error: BaseException | None) -> None:
        assert not asked.is_answered, "it has two answers"
        assert not asked.runs_on, "it still runs"
        asked.answered_at, asked.error = self.now, error
        del self._waiting[asked]

    def _check_that_nobody_waits_in_vain(self) -> None:
        for asked in self._waiting:
            may_run_on = [
                each.name
                for each in self.schedule.devices
                if each.availability is Availability.SERVING and each.name not in asked.ran_on
            ]
            for name in may_run_on if self.spill else may_run_on[:1]:
                free = self.limits[name] - self.devices[name].in_flight
                assert free <= 0, f"request {asked.number} waits while {name} is free"

    def check_turns(self) -> None:
        """No request was passed by more than the bound allows.

        It holds for requests that got a first turn; the others were cancelled, or nobody served.
        """
        place = {asked: at for at, asked in enumerate(self.first_runs)}
        for asked, at in place.items():
            for later in self.first_runs[:at]:
                if later.number > asked.number:
                    ahead = HEAD_START * (later.priority - asked.priority)
                    assert later.number - asked.number < ahead, "it was passed too often"

    # -- inside --

    def _scheduled(self, name: str) -> ScheduledDevice:
        return next(each for each in self.schedule.devices if each.name == name)

    def _next(self) -> float:
        return self._events[0][0] if self._events else math.inf

    def _at(self, when: float, action: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, action))
