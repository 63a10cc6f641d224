"""The devices that serve one network, and its requests. The pool does what the schedule decides.

The pool has no thread. A thread that submits, finishes or cancels a request, or reports that a
device is up or down, gives the schedule an event and carries out the schedule's instructions. The
timer's thread does the same at the end of a back-off.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from headrace.plugins.multi.loading import DeviceNetwork
from headrace.plugins.multi.running.availability import (
    UNLIMITED,
    Availability,
    Culprit,
    ScheduledDevice,
    blame,
)
from headrace.plugins.multi.running.counters import RERUN, MemberCounters
from headrace.plugins.multi.running.requests import (
    AnswerRequest,
    Instruction,
    PoolRequest,
    ReportOutage,
    RunRequest,
)
from headrace.plugins.multi.running.schedule import Schedule
from headrace.runtime.device.state import DeviceEvent, DeviceStates
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.execution.alarm import Alarm
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.execution.timer import Timer
from headrace.runtime.execution.trace import names
from headrace.runtime.execution.trampoline import Trampoline
from headrace.runtime.metrics.series import Series
from headrace.runtime.virtual.delegation import DeviceDelegation
from headrace.runtime.virtual.networks import optimal_requests
from headrace.runtime.virtual.part_job import submit

_log = logging.getLogger(__name__)

_Instruction = Instruction[Job]


class _Way(DeviceDelegation):
    """To a device for requests that it runs when they come.

    Attributes:
        at_work: the device's.
        outages: of the device, when it was taken.
    """

    __slots__ = ("_pool", "_run", "at_work", "device", "outages", "takes")

    def __init__(
        self, pool: DevicePool, device: ScheduledDevice, member: DeviceNetwork, completed: Series
    ) -> None:
        super().__init__(member.executable, partial(_count, completed))
        self._pool, self._run = pool, member.executable._start
        self.device, self.outages = device, device.outages
        self.at_work, self.takes = device.at_work, member.takes

    def start(self, job: Job) -> None:
        """Starts a job. It goes through the pool if not all go this way at present."""
        if job.inputs.keys() <= self.takes:
            self.at_work.append(None)
            if self._pool.direct is self:
                self._run(job)
                return
            self.at_work.pop()  # its member may have left meanwhile
            self._pool.release_left()
        job.delegation = None
        self._pool.submit(job)

    def run(self, job: Job) -> None:
        """Starts a job that the device has noted."""
        job.delegation = self
        self._run(job)

    def completed(self, job: Job) -> None:
        pool = self._pool
        if pool.direct is self:
            self.at_work.pop()  # nobody waits for room
            if pool.leaving:
                pool.release_left()
        else:
            pool.made_room(self, job)

    def failed(self, job: Job) -> None:
        self._pool.ended(self.request(job), job)

    def request(self, job: Job) -> PoolRequest:
        request = PoolRequest(job)
        request.device, request.outages = self.device, self.outages
        return request


class DevicePool:
    """Thread-safe: `_lock` guards the schedule, the members and the alarm. A thread that holds it
    may take the timer's lock, but must not submit, cancel or settle a job.

    Args:
        label: the network's label in the log.
        members: the preferred one first.
        spill: as for `Schedule`. If not, a device without a number gets all requests at once. They
            wait in its own queue, and need no lock of the pool.
        delegate: called under the lock with how a device runs all requests as they are, or None.
        changed: called without the lock when a device was taken out or put back.

    Attributes:
        direct: what `delegate` was called with last.
        leaving: what to do when a member that has left has no request any more.
    """

    def __init__(
        self,
        label: str,
        members: Sequence[DeviceNetwork],
        timer: Timer,
        states: DeviceStates,
        *,
        spill: bool,
        delegate: Callable[[_Way | None], object] = lambda _: None,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._label = label
        self._states = states
        self._changed = changed
        self._counters = MemberCounters()
        self._lock = threading.Lock()
        self._members = {member.name: member for member in members}
        self._taken = _taken_by(members)
        self._counts = {member.name: member.count for member in members}
        self._spill = spill
        self._delegate = delegate
        limits = [(member.name, self._limit(member, member.count)) for member in members]
        self._schedule: Schedule[Job] = Schedule(limits, time.monotonic(), spill=spill)
        self._trampoline: Trampoline[_Instruction] = Trampoline()
        self.leaving: dict[str, list[Callable[[], object]]] = {}
        self._ways: dict[str, _Way] = {}
        self._go(self._schedule.direct)
        self._alarm = Alarm(timer, self._on_alarm)
        self._unsubscribe = states.subscribe(self._on_device_event)

    def close(self) -> None:
        """Stops listening to events. Call it when no request is left. The caller closes the
        members."""
        self._unsubscribe()
        with self._lock:
            self._alarm.close()
            self._ways.clear()
            self._go(None)
            self._delegate = self._changed = silent  # they refer to the owner, which has this pool

    def count_with(self, label: str, counters: MemberCounters) -> None:
        """Uses this label in the log, and these counters, from now on."""
        with self._lock:
            self._label, self._counters = label, counters
            self._ways.clear()
            self._go(self._schedule.direct)

    # -- the present state --

    @property
    def waiting(self) -> int:
        """The number of requests that no device has."""
        return self._schedule.waiting

    @property
    def running(self) -> int:
        """The number of requests that a device has."""
        with self._lock:
            return sum(len(device.at_work) for device in self._schedule.devices)

    @property
    def members(self) -> tuple[DeviceNetwork, ...]:
        """The members in the list, the preferred one first."""
        with self._lock:
            return tuple(self._members[device.name] for device in self._schedule.devices)

    @property
    def serving(self) -> tuple[DeviceNetwork, ...]:
        """The members that take requests."""
        with self._lock:
            return tuple(
                self._members[device.name]
                for device in self._schedule.devices
                if device.availability is Availability.SERVING
            )

    def limits(self) -> dict[str, int]:
        """For each device, how many requests it gets at once, in order of preference."""
        with self._lock:
            return {device.name: device.limit for device in self._schedule.devices}

    def completed(self) -> dict[str, int]:
        """For each device, how many requests it has completed."""
        with self._lock:
            names = [device.name for device in self._schedule.devices]
        return {name: self._counters.completed(name) for name in names}

    def availabilities(self) -> dict[str, str]:
        """For each device, whether it serves, and if not, why."""
        with self._lock:
            return {
                device.name: f"{device.availability.value}: {device.reason}"
                if device.reason
                else device.availability.value
                for device in self._schedule.devices
            }

    # -- events --

    def submit(self, job: Job) -> None:
        """Runs the job on a device, now or when one is free."""
        if not (job.span or job.profile) and (way := self._enter(job)) is not None:
            way.run(job)
            return
        request = PoolRequest(job)
        request.listen(self._cancelled)  # a device that runs it learns of it by itself
        self._do(self._event(partial(self._schedule.arrive, request)), inline=job.may_run_inline)
        self._heed(request)

    def _enter(self, job: Job) -> _Way | None:
        """The way to a device that has room for the request, and has noted it. None if there is
        none, or if the request has an input that not all devices take."""
        with self._lock:
            if self._taken is not None and job.inputs.keys() <= self._taken:
                return self._way_to(self._schedule.start())
        return None

    def _go(self, device: ScheduledDevice | None) -> None:
        """Has the device run all requests from now on, if it is one."""
        self.direct = self._way_to(device)
        self._delegate(self.direct)

    def _way_to(self, device: ScheduledDevice | None) -> _Way | None:
        if device is None:
            return None
        way, member = self._ways.get(device.name), self._members[device.name]
        if not member.executable.runs_jobs_of_others:
            return None
        is_old = way is None or way.outages != device.outages
        if way is None or is_old or way.executable is not member.executable:
            completed = self._counters.requests(device.name, Outcome.COMPLETED)
            way = self._ways[device.name] = _Way(self, device, member, completed)
        return way

    def _heed(self, request: PoolRequest) -> None:
        """Looks at a request that may wait now: a cancel before that had no effect."""
        if request.item.token.cancelled:
            self._cancelled(request)

    def _cancelled(self, request: PoolRequest) -> None:
        error = request.item.token.error
        assert error is not None
        self._bring(lambda now: self._schedule.cancelled(request, error, now))

    def arrange(self, members: Iterable[tuple[DeviceNetwork, int | None]]) -> None:
        """Sets other members, other limits or another order. Members that are left out finish their
        requests, and can come back."""
        listed = list(members)
        limits = [(member.name, self._limit(member, count)) for member, count in listed]

        def arrange(now: float) -> list[_Instruction]:
            self._members.update((member.name, member) for member, _ in listed)
            self._taken = _taken_by([member for member, _ in listed])
            self._counts = {member.name: count for member, count in listed}
            return self._schedule.arrange(limits, now)

        self._bring(arrange)
        for member, _ in listed:
            self._look_at(member)  # its device may have gone down before it was in the list

    def follow(self) -> None:
        """Notes how many requests members without a number run at this moment."""
        optimal = {member.name: self._limit(member, None) for member in self.members}

        def arrange(now: float) -> list[_Instruction]:
            limits = {device.name: device.limit for device in self._schedule.devices}
            limits.update((name, n) for name, n in optimal.items() if not self._counts.get(name, 1))
            return self._schedule.arrange(limits.items(), now)

        before = self.limits()
        self._bring(arrange)
        if self.limits() != before:
            self._changed()

    def when_empty(self, member: DeviceNetwork, action: Callable[[], object]) -> None:
        """Calls `action` once, when the member has no request. The member has left the list."""
        with self._lock:
            self.leaving.setdefault(member.name, []).append(action)
        self.release_left()

    def release_left(self) -> None:
        """Calls the actions of `when_empty` whose members have no request left."""
        with self._lock:
            empty = [member for member in self.leaving if not self._schedule.running_on(member)]
            actions = [action for member in empty for action in self.leaving.pop(member)]
        for action in actions:
            action()

    def _on_device_event(self, event: DeviceEvent) -> None:
        for member in self.members:
            if member.is_told_of(event):
                self._look_at(member)

    def _look_at(self, member: DeviceNetwork) -> None:
        """Tells the schedule the state that the member's devices report at this moment. It ignores
        the state in the event, because events may be late."""

        def look(now: float) -> list[_Instruction]:
            reason = member.down(self._states.current())
            if reason:
                return self._schedule.down(member.name, reason, now)
            return self._schedule.up(member.name, now)

        self._bring(look)

    def _on_alarm(self) -> None:
        with self._lock:
            self._alarm.rang()
        self._bring(self._schedule.tick)

    def made_room(self, way: _Way, job: Job) -> None:
        """A device has completed a job that it got when it came."""
        with self._lock:
            matters = not self._schedule.ran(way.device)
        if matters:
            self._bring(partial(self._schedule.completed, way.request(job)))
        if self.leaving:
            self.release_left()

    def ended(self, request: PoolRequest, job: Job) -> None:
        """A device has settled the job. Observers of the caller hear of it afterwards, unless the
        job runs again."""
        assert request.device is not None
        assert job.outcome is not None
        device, outcome = request.device.name, job.outcome.value
        request.end_run()
        if job.error is None:
            todo = self._event(partial(self._schedule.completed, request))
        else:
            request.listen(self._cancelled)  # it may have to wait for another device
            todo, runs_again = self._failed(request, device, job.error)
            outcome = RERUN if runs_again else outcome
        self._counters.requests(device, outcome).add(1)
        if outcome == RERUN:
            self._heed(request)
        else:
            request.stop_listening()
        if todo:
            self._do(todo)
        if self.leaving:
            self.release_left()

    def _failed(
        self, request: PoolRequest, device: str, error: BaseException
    ) -> tuple[list[_Instruction], bool]:
        """What else is to be done, and whether the request runs again."""
        job = request.item
        fault = Culprit.REQUEST if job.token.cancelled else blame(error)
        if fault is Culprit.UNCLEAR:
            _log.warning(
                "%s: a request failed on %s",
                self._label,
                device,
                exc_info=error,
                extra={"request_id": job.trace, "device": device, **names(job.span)},
            )
        runs_again = False

        def failed(now: float) -> list[_Instruction]:
            nonlocal runs_again
            todo = self._schedule.failed(request, error, fault, now)
            others = [
                each
                for each in todo
                if not isinstance(each, AnswerRequest) or each.request is not request
            ]
            if len(others) == len(todo):
                runs_again = True
                job.reopen()  # before another thread gives it to a device
            return others

        return self._event(failed), runs_again

    # -- inside --

    def _bring(self, event: Callable[[float], list[_Instruction]]) -> None:
        self._do(self._event(event))

    def _event(self, event: Callable[[float], list[_Instruction]]) -> list[_Instruction]:
        with self._lock:
            todo = event(time.monotonic())
            self._go(self._schedule.direct)
            self._alarm.set(self._schedule.wake_at)
        return todo

    def _do(self, instructions: Sequence[_Instruction], *, inline: bool = False) -> None:
        self._trampoline(self._follow, instructions, inline=inline)

    def _follow(self, instruction: _Instruction, inline: bool) -> None:
        if isinstance(instruction, RunRequest):
            assert isinstance(instruction.request, PoolRequest)
            self._run(instruction.request, instruction.device, inline=inline)
        elif isinstance(instruction, AnswerRequest):
            assert isinstance(instruction.request, PoolRequest)
            instruction.request.item.fail(instruction.error)
            instruction.request.stop_listening()
        else:
            self._report(instruction)

    def _run(self, request: PoolRequest, device: str, *, inline: bool) -> None:
        job, member = request.item, self._members[device]
        request.begin_run(inline=inline)
        job.observe(partial(self.ended, request))
        if not job.inputs.keys() <= member.takes:
            job.fail(_cannot_replace(member))
        else:
            submit(job, member.executable)

    def _report(self, report: ReportOutage) -> None:
        if report.reason:
            self._counters.outages(report.device).add(1)
            _log.warning("%s: %s is taken out: %s", self._label, report.device, report.reason)
        else:
            _log.info("%s: %s serves again", self._label, report.device)
        self._changed()

    def _limit(self, member: DeviceNetwork, count: int | None) -> int:
        return count or (optimal_requests(member.executable) if self._spill else UNLIMITED)


def silent(*_: object) -> None:
    """Takes the place of callbacks when there are none."""


def _taken_by(members: Sequence[DeviceNetwork]) -> frozenset[str] | None:
    """The inputs that all members take; None if not all members run jobs as they are."""
    if not members or not all(member.executable.runs_jobs_of_others for member in members):
        return None
    return frozenset.intersection(*(member.takes for member in members))


def _count(completed: Series, runs: Collection[float]) -> None:
    completed.add(len(runs))


def _cannot_replace(member: DeviceNetwork) -> InvalidArgument:
    return InvalidArgument(f"{member.name} cannot replace a value of the network")
