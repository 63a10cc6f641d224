"""Which request runs on which device: a state machine, events in, instructions out.

Requests wait in one queue, in the order of `fair_queue`: by priority with ageing, so that a request
is passed by fewer than ``priority difference * HEAD_START`` later ones. Whenever a device has room,
the first in the list that has takes the request at the head of the queue. So no request waits while
a device that may run it is free.

A device that fails is taken out and, after a back-off, tried with one request. A request that was
on it runs again on another device, once, before those that never ran: a request is passed by as
many of these as were on devices that failed meanwhile. A failure that may be the request's own
fault takes the device out only once another device has run the request. A device that refuses a
request's values stays; another one that serves is asked, once.

Where no device serves, requests wait for `patience` seconds and are then told so.

Pure and not thread-safe: times are arguments, in seconds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import Generic

from headrace.plugins.multi.blame import Blame
from headrace.plugins.multi.instructions import (
    Answer,
    Failure,
    Instruction,
    Request,
    Run,
    T,
    Told,
)
from headrace.plugins.multi.station import Standing, Station
from headrace.runtime.errors import HeadraceError, Internal, Unavailable
from headrace.runtime.execution.fair_queue import FairQueue, Flow

PATIENCE_SECONDS = 2.0


class Schedule(Generic[T]):
    """
    Args:
        places: the devices, the preferred one first, and how many requests each runs at once.
        spill: whether a device takes what those before it have no room for; otherwise it takes
            requests only while none of those serves.
        patience: seconds for which requests wait while no device serves.
    """

    def __init__(
        self,
        places: Iterable[tuple[str, int]],
        now: float,
        *,
        spill: bool = True,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._spill = spill
        self._patience = patience
        self._queue: FairQueue[Request[T]] = FairQueue()
        self._flow: Flow[Request[T]] = Flow(sys.maxsize)
        self._again: dict[Request[T], None] = {}
        self._stations: dict[str, Station] = {}  # those that have left the list, too
        self._order: list[Station] = []
        self._dark_since = now  # no device has served since; infinite while one does
        self._said: list[Instruction[T]] = []
        self.arrange(places, now)

    # -- what is so --

    @property
    def waiting(self) -> int:
        """Requests that are on no device."""
        return len(self._queue) + len(self._again)

    @property
    def stations(self) -> tuple[Station, ...]:
        """In order of preference. To be read only."""
        return tuple(self._order)

    def running_on(self, device: str) -> int:
        """Requests that a device has, whether it is in the list or has left it."""
        return self._stations[device].running

    @property
    def wake_at(self) -> float:
        """When `tick` is due; infinite if never."""
        if self._calm():
            return math.inf
        due = [s.until for s in self._order if s.standing is Standing.OUT]
        due += (request.stranded + self._patience for request in self._again)
        if len(self._queue) and not self._any_takes(None):
            due.append(self._dark_since + self._patience)
        return min(due, default=math.inf)

    # -- events --

    def arrive(self, request: Request[T], now: float) -> list[Instruction[T]]:
        """A new request."""
        if not self.waiting and (station := self._free(None)) is not None:
            return [self._run(request, station)]
        request.entry = self._queue.push(self._flow, request, request.priority)
        return self._go_on(now)

    def completed(self, request: Request[T], now: float) -> list[Instruction[T]]:
        """The device has run it."""
        station, is_recent = self._leave(request)
        station.completed += 1
        if station.standing is Standing.SERVING and request.failed_on is None and not self.waiting:
            return [Answer(request)]
        self._said.append(Answer(request))
        if is_recent and station.standing is Standing.ON_TRIAL:
            self._put_back(station, now)
        failure = request.failed_on
        if failure is not None and failure.suspected == failure.station.spell:
            why = f"{station.name} could run what failed there: {_text(request.error)}"
            self._take_out(failure.station, why, now)
        return self._go_on(now)

    def failed(
        self, request: Request[T], error: BaseException, blame: Blame, now: float
    ) -> list[Instruction[T]]:
        """It ended on its device without output."""
        station, is_recent = self._leave(request)
        on_trial = station.standing is Standing.ON_TRIAL
        if is_recent and (blame is Blame.DEVICE or (blame is Blame.UNCLEAR and on_trial)):
            self._take_out(station, _text(error), now)
        refused = blame is Blame.VALUES and not self._any_takes(station)
        if blame is Blame.REQUEST or refused or request.error is not None:
            self._said.append(Answer(request, error))
        else:
            suspected = station.spell if is_recent and blame is Blame.UNCLEAR else None
            request.error, request.failed_on = error, Failure(station, suspected)
            self._again[request] = None
        return self._go_on(now)

    def cancelled(
        self, request: Request[T], error: BaseException, now: float
    ) -> list[Instruction[T]]:
        """Nobody waits for it any more. Nothing happens if it runs, for then its device is told,
        and says when it has ended."""
        if request in self._again:
            del self._again[request]
        elif request.entry is None or not self._queue.remove(request.entry):
            return []
        self._said.append(Answer(request, error))
        return self._go_on(now)

    def down(self, device: str, reason: str, now: float) -> list[Instruction[T]]:
        """The device says that it is down."""
        station = self._stations[device]
        was_out = station.standing is Standing.OUT
        station.went_down(reason, now)
        if not was_out:
            self._said.append(Told(device, reason))
        return self._go_on(now)

    def up(self, device: str, now: float) -> list[Instruction[T]]:
        """The device says that it is up; it serves at once if it had said that it was down."""
        station = self._stations[device]
        if station.came_up():
            self._put_back(station, now)
        return self._go_on(now)

    def tick(self, now: float) -> list[Instruction[T]]:
        """Time has passed."""
        for station in self._stations.values():
            station.try_again(now)
        return self._go_on(now)

    def arrange(self, places: Iterable[tuple[str, int]], now: float) -> list[Instruction[T]]:
        """Another order, other limits or other devices. One that is left out gets no requests any
        more, and finishes those that it has."""
        order = []
        for device, limit in places:
            station = self._stations.setdefault(device, Station(device, limit))
            station.limit = limit
            order.append(station)
        self._order = order
        return self._go_on(now)

    # -- inside --

    def _go_on(self, now: float) -> list[Instruction[T]]:
        runs: list[Instruction[T]] = list(self._dispatch())
        if not self._calm():
            self._give_up(now)
        elif self._dark_since != math.inf:
            self._dark_since = math.inf
        said, self._said = self._said, []
        return runs + said  # devices first: the caller of a request can wait longer than they

    def _dispatch(self) -> Iterator[Run[T]]:
        for request in [*self._again]:
            assert request.failed_on is not None
            station = self._free(request.failed_on.station)
            if station is not None:
                del self._again[request]
                yield self._run(request, station)
        while len(self._queue):
            station = self._free(None)
            popped = self._queue.pop() if station is not None else None
            if station is None or popped is None:
                return
            flow, request = popped
            self._queue.finished(flow)
            yield self._run(request, station)

    def _run(self, request: Request[T], station: Station) -> Run[T]:
        station.start()
        request.entry, request.station, request.spell = None, station, station.spell
        request.stranded = math.inf
        return Run(request, station.name)

    def _free(self, failed_on: Station | None) -> Station | None:
        """The device for a request that has failed on this one, or on none."""
        return next((each for each in self._takers(failed_on) if each.has_room), None)

    def _takers(self, failed_on: Station | None) -> Iterator[Station]:
        """The devices that may run such a request once they have room. One on trial is not for a
        request's last chance while another serves."""
        for station in self._order:
            if station is failed_on or station.standing is Standing.OUT:
                continue
            if station.standing is Standing.SERVING:
                yield station
                if not self._spill:
                    return
            elif failed_on is None or not self._any_serves_but(failed_on):
                yield station

    def _any_serves_but(self, station: Station) -> bool:
        return any(e.standing is Standing.SERVING for e in self._order if e is not station)

    def _any_takes(self, failed_on: Station | None) -> bool:
        return next(self._takers(failed_on), None) is not None

    def _calm(self) -> bool:
        """Whether all devices serve and no request has failed: the rule, and quickly told."""
        if self._again or not self._order:
            return False
        return all(each.standing is Standing.SERVING for each in self._order)

    def _give_up(self, now: float) -> None:
        """Answers what has waited in vain for long enough."""
        serves = any(each.standing is Standing.SERVING for each in self._order)
        self._dark_since = math.inf if serves else min(self._dark_since, now)
        for request in [*self._again]:
            assert request.failed_on is not None
            failed_on = request.failed_on.station
            if self._any_takes(failed_on):
                request.stranded = math.inf
                continue
            request.stranded = min(request.stranded, now)
            alone = all(each is failed_on for each in self._order)
            if alone or now >= request.stranded + self._patience:
                del self._again[request]
                self._said.append(Answer(request, request.error))
        if now >= self._dark_since + self._patience and not self._any_takes(None):
            for request in self._queue.drain():
                self._said.append(Answer(request, self._nobody_serves(now)))

    def _nobody_serves(self, now: float) -> Unavailable:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in self._order)
        error = Unavailable(f"none of the network's devices works; {reasons}")
        until = min((each.until for each in self._order), default=math.inf)
        error.retry_delay_seconds = max(until - now, 0.05) if until < math.inf else self._patience
        return error

    def _leave(self, request: Request[T]) -> tuple[Station, bool]:
        station, request.station = request.station, None
        assert station is not None, "the request is on no device"
        return station, station.end(request.spell)

    def _take_out(self, station: Station, reason: str, now: float) -> None:
        if station.standing is not Standing.OUT:
            station.take_out(reason, now)
            self._said.append(Told(station.name, reason))

    def _put_back(self, station: Station, now: float) -> None:
        station.put_back(now)
        self._said.append(Told(station.name))


def _text(error: BaseException | None) -> str:
    """What a caller may read of it."""
    if isinstance(error, HeadraceError) and not isinstance(error, Internal):
        return error.message
    return "an internal error; the log has it"
