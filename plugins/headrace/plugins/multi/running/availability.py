"""Decides whether a device that has the network takes requests, from their ends and back-offs.

The code is pure and not thread-safe. Times are arguments, in seconds.
"""

from __future__ import annotations

import enum
import math
import sys
from typing import Final

from headrace.runtime.errors import (
    EndedWorker,
    HeadraceError,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from headrace.runtime.system.backoff import Backoff

UNLIMITED: Final = sys.maxsize


class Availability(enum.Enum):
    """SERVING: takes requests up to its limit. OUT: takes none. ON_TRIAL: after a back-off; takes
    one request, and serves again if that succeeds."""

    SERVING = "serving"
    OUT = "out"
    ON_TRIAL = "on trial"


class ScheduledDevice:
    """A device that has loaded the network, as the schedule sees it.

    Attributes:
        limit: requests in flight, at most; UNLIMITED for as many as come.
        reason: why it does not serve; empty while it does.
        until: when a trial may begin, while the device is OUT; infinite if the device itself must
            report that it is up.
        outages: how often it was taken out. The end of a request that started before the latest
            outage says nothing about the device's present state.
        at_work: has an element for each request that it has. Other threads may append and pop: that
            is atomic.
    """

    __slots__ = (
        "_backoff",
        "_is_down",
        "_is_tried",
        "at_work",
        "availability",
        "limit",
        "name",
        "outages",
        "reason",
        "until",
    )

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.at_work: list[None] = []
        self.availability = Availability.SERVING
        self.reason = ""
        self.until = 0.0
        self.outages = 0
        self._backoff = Backoff()
        self._is_down = False
        self._is_tried = False

    @property
    def has_room(self) -> bool:
        if len(self.at_work) >= self.limit or self.availability is Availability.OUT:
            return False
        return self.availability is Availability.SERVING or not self._is_tried

    def start(self) -> None:
        """Notes that a request goes to the device."""
        self.at_work.append(None)
        self._is_tried = self.availability is Availability.ON_TRIAL

    def end(self, outages: int) -> bool:
        """Notes that a request has ended.

        Args:
            outages: the device's number of outages when the request started.

        Returns:
            Whether the request's end says something about the device's present state.
        """
        self.at_work.pop()
        is_recent = outages == self.outages
        if is_recent:
            self._is_tried = False
        return is_recent

    def take_out(self, reason: str, now: float) -> None:
        """Takes the device out: it gets no requests until the back-off is over."""
        self.availability, self.reason, self.outages = Availability.OUT, reason, self.outages + 1
        self._is_tried = False
        self.until = now + self._backoff.died(now, useful=False)

    def went_down(self, reason: str, now: float) -> None:
        """Notes that the device reports that it is down. It will report when it is up again."""
        if self.availability is not Availability.OUT:
            self.take_out(reason, now)
        self._is_down, self.reason, self.until = True, reason, math.inf

    def came_up(self) -> bool:
        """Notes that the device reports that it is up. False if it had not reported that it was
        down."""
        was_down, self._is_down = self._is_down, False
        return was_down

    def try_again(self, now: float) -> None:
        """Begins a trial if the time has come."""
        if self.availability is Availability.OUT and not self._is_down and now >= self.until:
            self.availability = Availability.ON_TRIAL

    def put_back(self, now: float) -> None:
        """Lets the device serve again."""
        self.availability, self.reason = Availability.SERVING, ""
        self._backoff.started(now)


class Culprit(enum.Enum):
    """What is at fault when a request has failed.

    DEVICE: the device is down, and reports it. REQUEST: any device would give the same error.
    VALUES: the device does not accept the request's values; another device may. UNCLEAR: a bug, no
    memory, or the end of the device's process. The device is at fault if another device can run the
    request; otherwise the request is.
    """

    DEVICE = "device"
    REQUEST = "request"
    VALUES = "values"
    UNCLEAR = "unclear"


def blame(error: BaseException) -> Culprit:
    """Decides by the error's class and never by its text. An error that is not a HeadraceError is a
    bug in the device's plugin or in its backend."""
    if isinstance(error, Unavailable):
        return Culprit.DEVICE
    if isinstance(error, InvalidArgument):  # names, types and shapes were right before it was sent
        return Culprit.VALUES
    unclear = Internal | ResourceExhausted | EndedWorker
    if isinstance(error, HeadraceError) and not isinstance(error, unclear):
        return Culprit.REQUEST
    return Culprit.UNCLEAR
