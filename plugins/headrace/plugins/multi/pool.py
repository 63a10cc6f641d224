"""The devices that serve one network, and its requests: what the schedule decides, done.

It has no thread. Whoever submits a request, finishes one, cancels one or says that a device is up
or down brings the schedule an event and does what it answers; back-offs are the timer's to end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from headrace.plugins.multi.blame import Blame, blame
from headrace.plugins.multi.counters import RERUN, MemberCounters
from headrace.plugins.multi.instructions import Answer, Instruction, Run, Told
from headrace.plugins.multi.member import Member
from headrace.plugins.multi.pool_request import PoolRequest
from headrace.plugins.multi.schedule import Schedule
from headrace.plugins.multi.station import Standing
from headrace.runtime.device.state import DeviceEvent, DeviceStates
from headrace.runtime.errors import Internal
from headrace.runtime.execution.alarm import Alarm
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.timer import Timer
from headrace.runtime.execution.trampoline import Trampoline

_log = logging.getLogger(__name__)

_Todo = Instruction[Job]


class Pool:
    """Thread-safe. `_lock` guards the schedule, the members and the alarm, and the timer's is taken
    under it. No part is submitted, cancelled or settled under it.

    Args:
        label: of the network, for the log.
        members: the preferred one first.
        spill: as of `Schedule`.
        changed: called, without the lock, when a device was taken out or put back.
    """

    def __init__(
        self,
        label: str,
        members: Sequence[Member],
        timer: Timer,
        states: DeviceStates,
        *,
        spill: bool,
        changed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._states = states
        self._clock = clock
        self._changed = changed
        self._counters = MemberCounters()
        self._lock = threading.Lock()
        self._members = {each.name: each for each in members}
        self._counts = {each.name: each.count for each in members}
        places = [(each.name, _limit(each, each.count)) for each in members]
        self._schedule: Schedule[Job] = Schedule(places, clock(), spill=spill)
        self._trampoline: Trampoline[_Todo] = Trampoline()
        self._leaving: dict[str, Callable[[], object]] = {}
        self._alarm = Alarm(timer, self._ring)
        self._unsubscribe = states.subscribe(self._hear)

    def close(self) -> None:
        """Hears no more; no request is left. The members are the caller's to close."""
        self._unsubscribe()
        with self._lock:
            self._alarm.close()

    def count_with(self, label: str, counters: MemberCounters) -> None:
        """Says so of the network from now on, in the log and in the counters."""
        self._label, self._counters = label, counters

    # -- what is so --

    @property
    def waiting(self) -> int:
        """Requests that no device has."""
        return self._schedule.waiting

    @property
    def running(self) -> int:
        """Requests that a device has."""
        with self._lock:
            return sum(station.running for station in self._schedule.stations)

    @property
    def members(self) -> tuple[Member, ...]:
        """All that are loaded, the preferred one first."""
        with self._lock:
            return tuple(self._members[each.name] for each in self._schedule.stations)

    @property
    def serving(self) -> tuple[Member, ...]:
        """Those of them that take requests."""
        with self._lock:
            return tuple(
                self._members[each.name]
                for each in self._schedule.stations
                if each.standing is Standing.SERVING
            )

    def limits(self) -> dict[str, int]:
        """Device to requests at once, in order of preference."""
        with self._lock:
            return {each.name: each.limit for each in self._schedule.stations}

    def completed(self) -> dict[str, int]:
        """Device to requests that it has completed."""
        with self._lock:
            return {each.name: each.completed for each in self._schedule.stations}

    def standings(self) -> dict[str, str]:
        """Device to whether it serves, and if not, why."""
        with self._lock:
            return {
                each.name: f"{each.standing.value}: {each.reason}"
                if each.reason
                else each.standing.value
                for each in self._schedule.stations
            }

    # -- events --

    def submit(self, job: Job) -> None:
        """Has a device run the job, now or when one is free."""
        request = PoolRequest(job, self._cancelled, self._ended)
        with self._lock:
            todo = self._schedule.arrive(request, self._clock())
            waits = request.station is None
            self._alarm.set(self._schedule.wake_at)
        self._do(todo, inline=job.may_run_inline)
        if waits:
            request.listen()

    def _cancelled(self, request: PoolRequest) -> None:
        error = request.item.token.error
        assert error is not None
        self._tell(lambda now: self._schedule.cancelled(request, error, now))

    def arrange(self, members: Iterable[tuple[Member, int | None]]) -> None:
        """Other members, limits or another order from now on. Those left out finish what they
        have, and can come back. Without a number, a member gets as many requests as it runs."""
        listed = list(members)
        limits = [(each.name, _limit(each, count)) for each, count in listed]

        def arrange(now: float) -> list[_Todo]:
            self._members.update((each.name, each) for each, _ in listed)
            self._counts = {each.name: count for each, count in listed}
            return self._schedule.arrange(limits, now)

        self._tell(arrange)
        for each, _ in listed:
            self._look_at(each)  # its device may have gone down before it was in the list

    def follow(self) -> None:
        """Members without a number get as many requests as they run at this moment."""
        found = {each.name: each.optimal_requests() for each in self.members}

        def arrange(now: float) -> list[_Todo]:
            limits = {each.name: each.limit for each in self._schedule.stations}
            limits.update((name, n) for name, n in found.items() if not self._counts.get(name, 1))
            return self._schedule.arrange(limits.items(), now)

        before = self.limits()
        self._tell(arrange)
        if self.limits() != before:
            self._changed()

    def when_empty(self, member: Member, action: Callable[[], object]) -> None:
        """Calls `action` once, when the member, which has left the list, has no request."""
        with self._lock:
            self._leaving[member.name] = action
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            empty = [each for each in self._leaving if not self._schedule.running_on(each)]
            actions = [self._leaving.pop(each) for each in empty]
        for action in actions:
            action()

    def _hear(self, event: DeviceEvent) -> None:
        for member in self.members:
            if member.is_told_of(event):
                self._look_at(member)

    def _look_at(self, member: Member) -> None:
        """Goes by what its devices say of themselves at this moment: events may be late."""

        def look(now: float) -> list[_Todo]:
            reason = member.down(self._states.current())
            if reason:
                return self._schedule.down(member.name, reason, now)
            return self._schedule.up(member.name, now)

        self._tell(look)

    def _ring(self) -> None:
        with self._lock:
            self._alarm.rang()
        self._tell(self._schedule.tick)

    def _ended(self, request: PoolRequest, part: Job) -> None:
        given, part.inputs, part.outputs = part.outputs, {}, {}  # others may hold it for a while
        part.token.close()
        job, error = request.item, part.error
        if error is None and any(name not in given for name in job.output_names):
            error = Internal(f"the device gave {sorted(given)}, not {job.output_names}")
        assert request.station is not None
        assert part.outcome is not None
        device, outcome = request.station.name, part.outcome.value
        if error is None:
            request.outputs = given
            todo = self._event(lambda now: self._schedule.completed(request, now))
        else:
            found, fault = error, Blame.REQUEST if job.token.cancelled else blame(error)
            todo = self._event(lambda now: self._schedule.failed(request, found, fault, now))
            if fault is Blame.UNCLEAR:
                _log.warning("%s: a request failed on %s", self._label, device, exc_info=error)
            if not any(isinstance(each, Answer) and each.request is request for each in todo):
                outcome = RERUN
        del given
        self._counters.ended(device, outcome)
        if outcome == RERUN:
            request.listen()  # it may have to wait for another device
        self._do(todo)
        if self._leaving:
            self._let_go()

    # -- inside --

    def _tell(self, event: Callable[[float], list[_Todo]]) -> None:
        self._do(self._event(event))

    def _event(self, event: Callable[[float], list[_Todo]]) -> list[_Todo]:
        with self._lock:
            todo = event(self._clock())
            self._alarm.set(self._schedule.wake_at)
        return todo

    def _do(self, todo: Sequence[_Todo], *, inline: bool = False) -> None:
        self._trampoline(self._do_one, todo, inline=inline)

    def _do_one(self, each: _Todo, inline: bool) -> None:
        if isinstance(each, Run):
            self._run(each, inline)
        elif isinstance(each, Answer):
            assert isinstance(each.request, PoolRequest)
            each.request.settle(each.error)
        else:
            self._report(each)

    def _run(self, run: Run[Job], inline: bool) -> None:
        request = run.request
        assert isinstance(request, PoolRequest)
        part = request.part(inline=inline)
        try:
            if part.token.error is not None:
                raise part.token.error
            self._members[run.device].executable.submit(part)
        except Exception as error:  # noqa: BLE001 - whatever a device does, the request has an outcome
            part.fail(error)

    def _report(self, told: Told) -> None:
        if told.reason:
            self._counters.taken_out(told.device)
            _log.warning("%s: %s is taken out: %s", self._label, told.device, told.reason)
        else:
            _log.info("%s: %s serves again", self._label, told.device)
        self._changed()


def _limit(member: Member, count: int | None) -> int:
    return count or member.optimal_requests()
