"""The devices that serve one network, and its requests. The pool does what the schedule decides.

The pool has no thread. A thread that submits, finishes or cancels a request, or reports that a
device is up or down, gives the schedule an event and carries out the schedule's instructions. The
timer's thread does the same at the end of a back-off.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

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
from headrace.runtime.virtual.networks import optimal_requests
from headrace.runtime.virtual.part_job import submit

_log = logging.getLogger(__name__)

_Instruction = Instruction[Job]


class _Way(NamedTuple):
    """To a device for requests that it runs when they come. `ran` observes their ends."""

    device: ScheduledDevice
    outages: int
    member: DeviceNetwork
    ran: Callable[[Job], None]


class DevicePool:
    """Thread-safe: `_lock` guards the schedule, the members and the alarm. A thread that holds it
    may take the timer's lock, but must not submit, cancel or settle a job.

    Args:
        label: the network's label in the log.
        members: the preferred one first.
        spill: as for `Schedule`. If not, a device without a number gets all requests at once. They
            wait in its own queue, and `_direct` is the way there, which needs no lock.
        changed: called without the lock when a device was taken out or put back.
    """

    def __init__(
        self,
        label: str,
        members: Sequence[DeviceNetwork],
        timer: Timer,
        states: DeviceStates,
        *,
        spill: bool,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._label = label
        self._states = states
        self._changed = changed
        self._counters = MemberCounters()
        self._lock = threading.Lock()
        self._members = {member.name: member for member in members}
        self._counts = {member.name: member.count for member in members}
        self._spill = spill
        limits = [(member.name, self._limit(member, member.count)) for member in members]
        self._schedule: Schedule[Job] = Schedule(limits, time.monotonic(), spill=spill)
        self._trampoline: Trampoline[_Instruction] = Trampoline()
        self._leaving: dict[str, list[Callable[[], object]]] = {}
        self._ways: dict[str, _Way] = {}
        self._direct = self._way_to(self._schedule.direct)
        self._alarm = Alarm(timer, self._on_alarm)
        self._unsubscribe = states.subscribe(self._on_device_event)

    def close(self) -> None:
        """Stops listening to events. Call it when no request is left. The caller closes the
        members."""
        self._unsubscribe()
        with self._lock:
            self._alarm.close()

    def count_with(self, label: str, counters: MemberCounters) -> None:
        """Uses this label in the log, and these counters, from now on."""
        self._label, self._counters = label, counters

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
        if job.span is None and (way := self._enter()) is not None:
            job.observe(way.ran)
            if not job.inputs.keys() <= way.member.takes:
                raise _cannot_replace(way.member)
            way.member.executable.start(job)
            return
        request = PoolRequest(job)
        request.listen(self._cancelled)  # a device that runs it learns of it by itself
        self._do(self._event(partial(self._schedule.arrive, request)), inline=job.may_run_inline)
        self._heed(request)

    def _enter(self) -> _Way | None:
        """The way to a device that runs a new request at once. The device has noted the request."""
        while (way := self._direct) is not None:
            way.device.at_work.append(None)
            if way is self._direct:
                return way
            way.device.at_work.pop()  # its member may have left meanwhile
            self._release_left()
        with self._lock:
            return self._way_to(self._schedule.start())

    def _way_to(self, device: ScheduledDevice | None) -> _Way | None:
        if device is None:
            return None
        way, member = self._ways.get(device.name), self._members[device.name]
        if way is None or way.outages != device.outages or way.member is not member:
            ran = partial(self._ran, device, device.outages)
            way = self._ways[device.name] = _Way(device, device.outages, member, ran)
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
            self._leaving.setdefault(member.name, []).append(action)
        self._release_left()

    def _release_left(self) -> None:
        """Calls the actions of `when_empty` whose members have no request left."""
        with self._lock:
            empty = [member for member in self._leaving if not self._schedule.running_on(member)]
            actions = [action for member in empty for action in self._leaving.pop(member)]
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

    def _ran(self, device: ScheduledDevice, outages: int, job: Job) -> None:
        """A device has settled a job that it got when it came."""
        if job.error is None and job.lacks_outputs() is None:
            if is_done := device.limit == UNLIMITED:
                device.at_work.pop()  # nobody waits for room
            else:
                with self._lock:
                    is_done = self._schedule.ran(device)
            if is_done:
                self._counters.requests(device.name, Outcome.COMPLETED).add(1)
                if self._leaving:
                    self._release_left()
                return
        request = PoolRequest(job)
        request.device, request.outages = device, outages
        self._ended(request, job)

    def _ended(self, request: PoolRequest, job: Job) -> None:
        """A device has settled the job. Observers of the caller hear of it afterwards, unless the
        job runs again."""
        assert request.device is not None
        assert job.outcome is not None
        device, outcome = request.device.name, job.outcome.value
        request.end_run()
        if job.error is None and (lack := job.lacks_outputs()) is not None:
            job.outputs, job.error, job.outcome = {}, lack, Outcome.FAILED
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
        if self._leaving:
            self._release_left()

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
            self._direct = self._way_to(self._schedule.direct)
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
        job.observe(partial(self._ended, request))
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


def _cannot_replace(member: DeviceNetwork) -> InvalidArgument:
    return InvalidArgument(f"{member.name} cannot replace a value of the network")
